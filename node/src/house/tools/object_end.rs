//! Finds where a JSON object or list ends that comes letter by letter.

/// Follows brackets and strings. What is between the brackets need not be right.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ObjectEnd {
    depth: u32,
    string: bool,
    escaped: bool,
}

impl ObjectEnd {
    /// Takes one more letter, the first of which is `{` or `[`; whether the object ends with it.
    pub fn push(&mut self, letter: char) -> bool {
        if self.string {
            match letter {
                _ if self.escaped => self.escaped = false,
                '\\' => self.escaped = true,
                '"' => self.string = false,
                _ => {}
            }
            return false;
        }
        match letter {
            '"' => self.string = true,
            '{' | '[' => self.depth = self.depth.saturating_add(1),
            '}' | ']' => {
                self.depth = self.depth.saturating_sub(1);
                return self.depth == 0;
            }
            _ => {}
        }
        false
    }
}
