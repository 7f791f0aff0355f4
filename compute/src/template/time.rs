//! A date and time as people say it.

/// A date and time of day in one place, by the Gregorian calendar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CivilTime {
    /// The year.
    pub year: i32,
    /// 1 to 12.
    pub month: u8,
    /// 1 to 31.
    pub day: u8,
    /// 0 to 23.
    pub hour: u8,
    /// 0 to 59.
    pub minute: u8,
    /// 0 to 59.
    pub second: u8,
}

const DAYS: [&str; 7] =
    ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

impl CivilTime {
    /// The time in UTC, so many seconds after 1970 began.
    pub fn from_unix(seconds: i64) -> Self {
        let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400) as u32);
        // Years here begin in March, so that the leap day is the last; eras have 400 years.
        let day = days + 719_468;
        let (era, day) = (day.div_euclid(146_097), day.rem_euclid(146_097));
        let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
        let day = day - (365 * year + year / 4 - year / 100);
        let month = (5 * day + 2) / 153;
        Self {
            year: (era * 400 + year + i64::from(month >= 10)) as i32,
            month: (if month < 10 { month + 3 } else { month - 9 }) as u8,
            day: (day - (153 * month + 2) / 5 + 1) as u8,
            hour: (second / 3_600) as u8,
            minute: (second / 60 % 60) as u8,
            second: (second % 60) as u8,
        }
    }

    /// By the directives of C's `strftime`, in English; unknown ones stay as they are.
    pub fn format(&self, format: &str) -> String {
        let mut out = String::new();
        let mut rest = format.chars();
        while let Some(c) = rest.next() {
            if c != '%' {
                out.push(c);
                continue;
            }
            match rest.next() {
                // Some systems write %-d for a number without a leading zero.
                Some('-') => match rest.next() {
                    Some(c) => match self.directive(c) {
                        Some(text) => out.push_str(unpadded(&text)),
                        None => out.extend(['%', '-', c]),
                    },
                    None => out.push_str("%-"),
                },
                Some(c) => match self.directive(c) {
                    Some(text) => out.push_str(&text),
                    None => out.extend(['%', c]),
                },
                None => out.push('%'),
            }
        }
        out
    }

    fn directive(&self, letter: char) -> Option<String> {
        let Self { year, month, day, hour, minute, second } = *self;
        let hour12 = (hour + 11) % 12 + 1;
        Some(match letter {
            'Y' => format!("{year}"),
            'y' => format!("{:02}", year.rem_euclid(100)),
            'm' => format!("{month:02}"),
            'd' => format!("{day:02}"),
            'e' => format!("{day:2}"),
            'j' => format!("{:03}", self.day_of_year()),
            'H' => format!("{hour:02}"),
            'I' => format!("{hour12:02}"),
            'M' => format!("{minute:02}"),
            'S' => format!("{second:02}"),
            'p' => (if hour < 12 { "AM" } else { "PM" }).to_owned(),
            'B' => self.month_name().to_owned(),
            'b' | 'h' => self.month_name()[..3].to_owned(),
            'A' => self.day_name().to_owned(),
            'a' => self.day_name()[..3].to_owned(),
            'w' => self.weekday().to_string(),
            'u' => ((self.weekday() + 6) % 7 + 1).to_string(),
            'F' => format!("{year}-{month:02}-{day:02}"),
            'D' | 'x' => format!("{month:02}/{day:02}/{:02}", year.rem_euclid(100)),
            'T' | 'X' => format!("{hour:02}:{minute:02}:{second:02}"),
            'R' => format!("{hour:02}:{minute:02}"),
            'c' => self.format("%a %b %e %H:%M:%S %Y"),
            'n' => "\n".to_owned(),
            't' => "\t".to_owned(),
            '%' => "%".to_owned(),
            // Times are naive, as transformers has them.
            'z' | 'Z' => String::new(),
            _ => return None,
        })
    }

    fn month_name(&self) -> &'static str {
        MONTHS[usize::from(self.month.clamp(1, 12)) - 1]
    }

    fn day_name(&self) -> &'static str {
        DAYS[self.weekday() as usize]
    }

    /// 0 is Sunday.
    fn weekday(&self) -> i64 {
        (self.days() + 4).rem_euclid(7)
    }

    fn day_of_year(&self) -> i64 {
        self.days() - Self { month: 1, day: 1, ..*self }.days() + 1
    }

    /// Days since 1970 began.
    fn days(&self) -> i64 {
        let early = self.month < 3;
        let year = i64::from(self.year) - i64::from(early);
        let month = i64::from(self.month) + if early { 9 } else { -3 };
        let (era, year) = (year.div_euclid(400), year.rem_euclid(400));
        let day = (153 * month + 2) / 5 + i64::from(self.day) - 1;
        era * 146_097 + year * 365 + year / 4 - year / 100 + day - 719_468
    }
}

fn unpadded(text: &str) -> &str {
    let short = text.trim_start_matches(['0', ' ']);
    if short.is_empty() { &text[text.len().saturating_sub(1)..] } else { short }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_become_dates() {
        let date = |seconds| CivilTime::from_unix(seconds).format("%F %T %a %j");
        assert_eq!(date(0), "1970-01-01 00:00:00 Thu 001");
        assert_eq!(date(951_782_399), "2000-02-28 23:59:59 Mon 059");
        assert_eq!(date(951_782_400), "2000-02-29 00:00:00 Tue 060");
        assert_eq!(date(1_796_083_199), "2026-11-30 23:59:59 Mon 334");
        assert_eq!(date(-1), "1969-12-31 23:59:59 Wed 365");
        assert_eq!(date(4_107_542_400), "2100-03-01 00:00:00 Mon 060");
    }

    #[test]
    fn directives_are_those_of_strftime() {
        let time = CivilTime { year: 2026, month: 7, day: 4, hour: 0, minute: 5, second: 9 };
        for (format, expected) in [
            ("%d %b %Y", "04 Jul 2026"),
            ("%A, %B %-d, %Y", "Saturday, July 4, 2026"),
            ("%e|%I|%p|%y|%u|%w", " 4|12|AM|26|6|6"),
            ("%-H:%-M %Z%%", "0:5 %"),
            ("%c", "Sat Jul  4 00:05:09 2026"),
            ("%Q %-", "%Q %-"),
            ("100%", "100%"),
        ] {
            assert_eq!(time.format(format), expected, "{format}");
        }
    }
}
