"""A corpus of short texts in many scripts, the same on every run."""

import random
from collections.abc import Callable

_WORDS = {
    "latin": "the quick brown fox don't Über façade naïve Straße İstanbul ijsland żółć Đà ñandú",
    "cyrillic": "Москва привет съешь ещё этих мягких французских булок Київ їжак Ђорђе",
    "greek": "Αθήνα καλημέρα Ὀδυσσεύς ἄνθρωπος ΣΊΣΥΦΟΣ λόγος",
    "arabic": "السلام عليكم مَرْحَبًا العَرَبِيَّة لا إله فارسی می‌خواهم گچپژ",
    "hebrew": "שלום עולם בְּרֵאשִׁית ירושלים תודה",
    "devanagari": "नमस्ते दुनिया क्षत्रिय हिन्दी संस्कृतम् १२३",
    "bengali": "বাংলা ভাষা নমস্কার ক্ষুদ্র",
    "tamil": "தமிழ் வணக்கம் கூடுதல்",
    "thai": "สวัสดีชาวโลก ภาษาไทย น้ำ กรุงเทพฯ ๑๒๓",
    "chinese": "你好世界 中華民國 我能吞下玻璃而不傷身體 𠮷野家 〇",
    "japanese": "こんにちは カタカナ ｶﾀｶﾅ 日本語テスト がぎぐ",
    "hangul": "안녕하세요 세계 한국어 각 값",
    "georgian": "საქართველო გამარჯობა ᲡᲐᲥᲐᲠᲗᲕᲔᲚᲝ",
    "armenian": "Հայաստան բարեւ",
    "ethiopic": "ሰላም ኢትዮጵያ",
    "tibetan": "བོད་སྐད་ བཀྲ་ཤིས་",
    "emoji": "😀 👍🏽 👩‍👩‍👧‍👦 🏳️‍🌈 🇨🇭🇯🇵 ❤️ 1️⃣ 🧑🏿‍🚀 ☺ ✊🏻",
    "combining": "e\u0301 a\u030a\u0323 o\u0302\u0301 Z\u0351\u036b\u0343 \u0301x \ufb01 \u212b",
    "maths": "∀x∈ℝ ∑ᵢ₌₁ⁿ √2 ≤ ≠ ½ ¾ Ⅷ ² ③ ٣٤٥ ۱۲۳ 𝟘𝟙 ∫f(x)dx → €£¥",
    "punctuation": "— … « » “quoted” ‘x’ ¿qué? ¡no! ·•※ /\\ || && ~~ `` ^_^ :-)",
}
_CONTRACTIONS = "I'm YOU'RE we've She'LL don't DON'T it's IT'S he'd 'tis o'clock rock'n'roll ’s ’LL"
_CODE = (
    "def f(x: int) -> int:\n    return x ** 2  # square\n",
    "for (int i = 0; i < n; ++i) {\n\ta[i] += 1;\r\n}",
    '{"key": [1, 2.5e-3, null], "s": "\\u00e9\\n"}',
    "<div class='a'>&nbsp;&#39;</div><!-- x -->",
    "SELECT * FROM t WHERE a<>'b' AND c>=10;",
    "https://example.org/a?b=c&d=%20#frag",
    "C:\\Users\\x\\*.txt $HOME ~/.bashrc",
    "0xDEADbeef 1_000_000 3.14159 1e10 v2.0.1-rc1",
)
_LOOKALIKES = (
    *("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|im_end|", "|im_start|>", "<| im_end |>"),
    *(
        "<s>",
        "</s>",
        "<unk>",
        "<0x0A>",
        "<0xZZ>",
        "▁",
        "▁▁a",
        "Ġ",
        "ĠĠa",
        "Ċ",
        "[INST]",
        "<filename>",
    ),
    *("<|begin_of_text|>", "<|eot_id|>", "<repo_name>", "<|IM_END|>", "＜|im_end|＞"),
)
_SPACES = (
    *(
        " ",
        "  ",
        "   ",
        "        ",
        "\n",
        "\n\n",
        "\r\n",
        "\r",
        "\t",
        "\t\t",
        " \n ",
        "\n \n",
        " \t",
    ),
    *("\u00a0", "\u2003", "\u3000", "\u200b", "\u2028", "\u0085", "\v", "\f", "\ufeff", "\x1f"),
)
_CONTROLS = (
    "\x00\x01\x07\x08\x0e\x1b\x7f\x80\x9f\u200d\u200e\u202e\u2066\ufff9\ufffd\ufffe\U000e0001"
)
_EDGES = "\x7f\x80\u07ff\u0800\ud7ff\ue000\uffff\U00010000\U0010ffff"


def make_strings(count: int = 2800, *, seed: int = 20240229) -> list[str]:
    """`count` distinct texts: every fixed sample first, then mixtures of them."""
    rng = random.Random(seed)
    makers: tuple[Callable[[random.Random], str], ...] = (
        *(_one_script, _mixed_scripts, _numbers, _spaced, _coded),
        *(_special, _any_characters, _long_word, _cased_contractions),
    )
    found = dict.fromkeys(_fixed())
    while len(found) < count:
        maker = makers[len(found) % len(makers)]
        found.setdefault(maker(rng))
    return list(found)[:count]


def _fixed() -> list[str]:
    words = [word for text in _WORDS.values() for word in text.split(" ")]
    controls = [*_CONTROLS, *_EDGES, *(f"a{c}b" for c in _CONTROLS)]
    spaces = [*_SPACES, *(f"a{s}b" for s in _SPACES), *(f"a{s}1" for s in _SPACES)]
    return [
        *("", "a", " a", "a ", "  a  ", " ", "▁a"),
        *(*words, *_WORDS.values(), *_CONTRACTIONS.split(" "), *_CODE),
        *(*_LOOKALIKES, *spaces, *controls),
        *(
            "1",
            "12",
            "123",
            "1234",
            " 1",
            "  1",
            " 12  34",
            "a1b2",
            "1\n2",
            "\n 1",
            "x" * 300,
            "ab" * 200,
        ),
    ]


def _words_of(rng: random.Random, script: str, low: int = 1, high: int = 6) -> str:
    words = _WORDS[script].split(" ")
    return " ".join(rng.choice(words) for _ in range(rng.randint(low, high)))


def _one_script(rng: random.Random) -> str:
    return _words_of(rng, rng.choice(list(_WORDS)), 2, 9)


def _mixed_scripts(rng: random.Random) -> str:
    texts = [_words_of(rng, rng.choice(list(_WORDS)), 1, 2) for _ in range(rng.randint(2, 5))]
    return rng.choice(["", " ", ", ", ". ", "-"]).join(texts)


def _numbers(rng: random.Random) -> str:
    numbers = [str(rng.randrange(10 ** rng.randint(1, 9))) for _ in range(rng.randint(1, 4))]
    extra = rng.choice(["", "%", " kg", "th", ".5", "٣٤", "½", "²", "Ⅷ", "１２"])
    return rng.choice(_SPACES).join(numbers) + extra


def _spaced(rng: random.Random) -> str:
    parts = []
    for _ in range(rng.randint(2, 6)):
        parts.append(_words_of(rng, rng.choice(["latin", "chinese", "maths", "emoji"]), 1, 1))
        parts.append("".join(rng.choices(_SPACES, k=rng.randint(1, 3))))
    return "".join(parts[rng.randint(0, 1) :])


def _coded(rng: random.Random) -> str:
    lines = rng.choices(_CODE, k=rng.randint(1, 3))
    return rng.choice(["\n", "\r\n", "\n\n\t", "    "]).join(lines)[rng.randint(0, 9) :]


def _special(rng: random.Random) -> str:
    parts = []
    for _ in range(rng.randint(1, 4)):
        parts.append(rng.choice(["", " ", "\n", _words_of(rng, "latin", 1, 2)]))
        parts.append(rng.choice(_LOOKALIKES))
    return "".join(parts) + rng.choice(["", " ", "x", "\n"])


def _any_characters(rng: random.Random) -> str:
    limits = (0x80, 0x800, 0x3000, 0xD800, 0x20000, 0x110000)
    points = [rng.randrange(rng.choice(limits)) for _ in range(rng.randint(1, 24))]
    return "".join(chr(point) for point in points if not 0xD800 <= point < 0xE000)


def _long_word(rng: random.Random) -> str:
    script = rng.choice(list(_WORDS))
    return _WORDS[script].replace(" ", "") * rng.randint(2, 8) + str(rng.randrange(1000))


def _cased_contractions(rng: random.Random) -> str:
    words = rng.choices(_CONTRACTIONS.split(" "), k=rng.randint(2, 6))
    text = rng.choice(["", " ", "  ", "\n"]).join(words)
    return rng.choice([text, text.upper(), text.lower(), text.swapcase()])
