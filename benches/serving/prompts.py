"""What is asked: ordinary questions, texts of a given length, texts to be copied."""

import random

SUBJECTS = ["river", "market", "lighthouse", "orchard", "library", "harbour", "mountain",
            "railway", "garden", "workshop", "island", "museum", "bakery", "forest", "bridge"]
PEOPLE = ["Anna", "Tomas", "Mei", "Ravi", "Lena", "Omar", "Sofia", "Pavel", "Ines", "Kofi"]
DEEDS = ["counted the boats", "repaired an old clock", "planted nine trees", "wrote a letter",
         "mapped the coast", "sold warm bread", "measured the rain", "opened a small school",
         "painted the doors blue", "carried water uphill", "studied the stars",
         "collected stories"]
WHEN = ["in the early spring", "after the long storm", "when the road was closed",
        "before the festival", "during the quiet season", "on the last day of the year"]


def sentences(dice, count):
    """`count` sentences that look like prose and hardly repeat."""
    one = "{} {} near the {} {}, and {} of the {} wrote down {} pages about it.".format
    return " ".join(
        one(dice.choice(PEOPLE), dice.choice(DEEDS), dice.choice(SUBJECTS), dice.choice(WHEN),
            dice.choice(PEOPLE), dice.choice(SUBJECTS), dice.randrange(3, 900))
        for _ in range(count))


def of_length(count_tokens, tokens, seed, question):
    """A text of about `tokens` tokens that ends in `question`; another seed, another text from its
    very beginning on. `count_tokens` tells how many tokens a text has."""
    dice = random.Random(seed)
    text = f"Note {dice.randrange(10_000, 99_999)}. " + sentences(dice, tokens // 16 + 2)
    words = text.split()
    each = count_tokens(text) / len(words)
    room = tokens - count_tokens(question)
    return " ".join([*words[: max(1, round(room / each))], question])


# The mix of lengths of eight users, tokens of what they say; and of two of them who are, together,
# like the average.
MIX = [20, 60, 100, 140, 180, 220, 260, 300]
AVERAGE = [2, 5]
QUESTIONS = [
    "Continue this as a long story.",
    "What does this tell us? Explain at length.",
    "Write a detailed report about it.",
    "List everything that happened, and explain each point.",
]

TO_COPY = (
    "The station opened at six. Anna carried nine green boxes to the second platform, and Ravi "
    "wrote each number into the blue book: 4107, 4108, 4112, 4119 and 4125. At half past seven "
    "the train from Brno arrived with twelve passengers, two bicycles and a crate of pears. "
    "Nobody spoke much. Lena closed the gate, counted the tickets again and found that one was "
    "missing. By nine the rain had stopped, the boxes were gone, and the book lay open on the "
    "bench beside a cup of cold tea."
)
JSON_TO_EDIT = """{
  "name": "harbour-service",
  "version": "1.4.2",
  "host": "0.0.0.0",
  "port": 8080,
  "timeout_seconds": 30,
  "workers": 4,
  "log_level": "info",
  "database": {
    "host": "db.internal",
    "port": 5432,
    "user": "harbour",
    "pool_size": 10
  },
  "features": {
    "search": true,
    "export": false,
    "notifications": true
  }
}"""
COPYING = {
    "repeat a text": f"Repeat the following text exactly, word for word:\n\n{TO_COPY}",
    "edit JSON": "Change the port of the service to 9090 in this JSON and print the whole JSON "
                 f"again, with everything else as it is:\n\n{JSON_TO_EDIT}",
}
ORDINARY = {
    "story": "Write a story about a lighthouse keeper who finds a message in a bottle.",
    "list": "List ten useful things to take on a walk in the mountains, each with a reason.",
    "explanation": "Explain how a bicycle stays upright while it is moving.",
    "code": "Write a Python function that merges two sorted lists, and explain how it works.",
    "letter": "Write a polite letter to a landlord about a broken heater.",
    "dialogue": "Write a conversation between a baker and a customer who wants a cake.",
    "history": "What happened in the year 1066, and why did it matter?",
    "recipe": "How do I cook tomato soup for four people? Give me the steps.",
}
