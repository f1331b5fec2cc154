"""Warnings about implausible translations."""

import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from relattn_mt.text.plausibility import implausibilities


@pytest.mark.parametrize(
    ("source", "translation", "expected"),
    [
        ("A dog runs.", "Ein Hund läuft.", ()),
        ("A dog runs.", " \u200b", ("empty",)),
        ("", "Ein Hund", ()),
        ("very good", "sehr sehr sehr sehr gut", ("repetition",)),
        ("One. Two. Three. Four. Five.", "Eins. Zwei. Drei. Vier. Fünf.", ()),
        ("I see. " * 40, "Ach so. " * 19, ("length",)),
        ("Go! Now? " * 5, "Geh! Jetzt? " * 7, ("length",)),
        ("very good", "sehr sehr sehr gut", ()),
        ("very very very very good", "sehr sehr sehr sehr gut", ()),
        ("看看书", "我们看书我们看书我们看书我们看书", ("repetition",)),
        ("no", "no one no one no one no one", ("repetition",)),
        ("wait ......", "warte ...........................", ("tags",)),
        ("I have 1,204.50 euros", "Ich habe 1.204,50 Euro", ()),
        ("I have 12 345 678 euros", "Ich habe 12.345.678 Euro", ()),
        ("at 3 p.m., page 1204", "um 15 Uhr, Seite 1204", ()),
        ("page 1204", "Seite 1240", ("numbers",)),
        ("It costs 1.5 million dollars.", "Es kostet 15 Millionen Dollar.", ("numbers",)),
        ("It costs 1.5 million dollars.", "Es kostet 1,5 Millionen Dollar.", ()),
        ("$1,234.56", "1:234.56", ("numbers",)),
        ("$1,234.56", "1.234,56 $", ()),
        ("$1,234.56", "1 234,56 $", ()),
        ("$1,234.56", "1234,56 $", ()),
        ("$1,234.56", "123.456 $", ("numbers",)),
        ("1,234 people", "1.234 Leute", ()),
        ("1,234 people", "1234 Leute", ()),
        ("1,234 people", "12,34 Leute", ("numbers",)),
        ("0.25 grams", "0,25 Gramm", ()),
        ("12% for $20", "21 % für 20 Dollar", ("numbers",)),
        ("12% for $20", "12 Prozent für 30 $", ("numbers",)),
        ("12% for 20 dollars", "12 Prozent für $20", ()),
        ("１２３ people of ٣٤٥", "123 Leute von 345", ()),
        ("0.25 grams", "25 Gramm", ("numbers",)),
        ("2.50 euros", "2,5 Euro", ()),
        ("1,234,567 and 3.14", "1.234.567 und 3,14", ()),
        ("1,234,567 and 3.14", "1.234.567 und 3,41", ("numbers",)),
        ("on May 12, 2020", "am 12.05.2020", ()),
        ("in 2020 1204 people", "1204 Leute in 2020", ()),
        ("at 6:30 p.m.", "um 18.30 Uhr", ()),
        ("on February 27th", "am 27.2. abends", ()),
        ("CHF 12’345.60", "12 345,60 CHF", ()),
        ("page 1204", "Seite", ("numbers",)),
        ("a page", "Seite 100", ("numbers",)),
        ("see https://example.org/a and {name}", "siehe https://example.org/a und {name}", ()),
        ("see https://example.org/a", "siehe https://example.org/b", ("tags",)),
        ("<b>bold</b> %s", "<b>fett %s", ("tags",)),
        ("5 km", "5 Kilometer", ()),
        ("I have 40 books.", "Ich habe vierzig Bücher.", ()),
        ("I have 40 books.", "Ich habe vierzehn Bücher.", ("numbers",)),
        ("I have forty books.", "Ich habe 40 Bücher.", ()),
        ("I have fifty books.", "Ich habe 40 Bücher.", ("numbers",)),
        ("the 10 big books that I have", "meine zehn Bücher", ()),
        ("the 10 big books that I have", "meine neun Bücher", ("numbers",)),
        ("music of the 1980s", "Musik der 80er", ()),
        ("It takes 30s to load.", "Es lädt 30 s lang.", ()),
        ("a pack of 50 screws", "ein 50er-Pack Schrauben", ()),
        ("three people", "30 Leute", ("numbers",)),
        ("3 red houses", "dreißig Häuser", ("numbers",)),
        ("8 small dogs", "achtzehn Hunde", ("numbers",)),
        ("music of the 1980s", "Musik der 90er", ("numbers",)),
        ("It is due on 1 December 2013.", "It is due by Dec. 1, 2013.", ()),
        ("It is due on 1 December 2013.", "It is due by 1, 2013.", ("numbers",)),
        ("a fine of $100 or so", "etwa 100 US-Dollar Strafe", ()),
        ("I have 12 books.", "Ich habe zwölf Bücher.", ()),
        ("I have 12 books.", "Ich habe Bücher.", ("numbers",)),
        ("I have 7 books.", "Ich habe 8 Bücher.", ("numbers",)),
        ("at 7:30 sharp", "Punkt halb acht", ()),
        ("at 7 p.m. today", "heute um 19 Uhr", ()),
        ("on 3 May 2024", "am 3. Mai 2024", ()),
        ("on 3 May 2024", "am 03.05.2024", ()),
        ("on 3 May 2024", "auf 3 2024", ("numbers",)),
        ("at 27 in 2024", "27 in 2024", ()),
        ("It is $5 or so.", "Es sind 5 Dollar oder so.", ()),
        ("It is $5 or so.", "Es sind USD 5 oder so.", ()),
        ("It is $5 or so.", "Es sind 5, oder so.", ("numbers",)),
        ("It is $5 or so.", "Es sind 5 oder so.", ("numbers",)),
        ("Your tickets cost $45.", "Eure Karten kosten 45.", ("numbers",)),
        ("Those there cost $45.", "Jene dort kosten 45.", ("numbers",)),
        ("He paid $45 in the USA.", "Er hat 45 in den USA bezahlt.", ("numbers",)),
        ("It costs ₹500 now.", "Es kostet jetzt 500 Rupien.", ()),
        ("It costs ₽500 now.", "It costs 500 roubles now.", ()),
        ("It costs £5 now.", "Se maksaa nyt 5 puntaa.", ()),
        ("It is $5 or so.", "Es sind 5 € oder so.", ("numbers",)),
        ("It is $5 or so.", "Это 5 долларов или около того.", ()),
        ("It is $5 or so.", "Son unos 5 dólares.", ()),
        ("Es sind 5 Millionen €.", "It is 5 million euros.", ()),
        ("$5.00 -- or 4,50 €", "5.00- oder 4.50 €", ("numbers",)),
        ("$5.00 -- or 4,50 €", "5,00 $ oder 4,50", ("numbers",)),
        ("Read chapters 3 and 4 for £2.", "Lies Kapitel 3 und 4 für 2 Pfund.", ()),
        ("Der Termin ist am 07.02.2024.", "The appointment is on Jul 7, 2024.", ("numbers",)),
        ("Der Termin ist am 07.02.2024.", "The appointment is on Feb 7, 2024.", ()),
        ("Der Termin ist am 07.02.2024.", "The appointment is on 7 February 2024.", ()),
        ("Der Termin ist am 07.02.2024.", "Spotkanie jest 7 lutego 2024.", ()),
        ("Der Termin ist am 07.02.2024.", "El encuentro es el 7 de febrero de 2024.", ()),
        ("Der Termin ist am 07.02.2024.", "The appointment is on 02/07/2024.", ()),
        ("Der Termin ist am 07.02.2024.", "The appointment is on 03/07/2024.", ("numbers",)),
        ("Geburtsdatum: 05.03.1985", "Date of birth: 5, 1985", ("numbers",)),
        ("It is on Feb 7, 2024.", "Es ist am 07.03.2024.", ("numbers",)),
        ("It is on Feb 7, 2024.", "Es ist am 7. März 2024.", ("numbers",)),
        ("Am 24.12. ist Weihnachten.", "Jun 24, 12. is Christmas.", ("numbers",)),
        ("Am 24.12. ist Weihnachten.", "Christmas is on December 24.", ()),
        ("Am 24.12. ist Weihnachten.", "Christmas is on the 24th of December.", ()),
        ("It is on May 3.", "Es ist am 3.6. abends.", ("numbers",)),
        ("Not on 1 June but on 1 July.", "Am 1. Juli und nicht am 1. Juni.", ()),
        ("On 3 June we got 3 sets.", "Am 3. Juni bekamen wir 3 Sätze.", ()),
        ("There are 5 major markets.", "Il y a 5 marchés majeurs.", ()),
        ("Version 10 von 2024", "version 10 of 2024", ()),
        ("open from 9:00 to 17:00", "von 9 bis 17 Uhr geöffnet", ()),
        ("Mon-Fri 9:00-18:00", "Mo-Fr 9-18 Uhr", ()),
        ("open from 9:00 to 17:00", "bis 17 Uhr geöffnet", ("numbers",)),
        ("It is -5 °C.", "Hace 5 grados bajo cero.", ()),
        ("It is -5 °C.", "Il fait 5 degrés sous zéro.", ()),
        ("It is -5 °C.", "Es sind 5 °C.", ("numbers",)),
        ("It is -5 °C.", "Es sind −5 °C.", ()),
        ("It is -5 °C.", "Es sind minus 5 °C.", ()),
        ("It costs -$50.", "Es kostet 50 $.", ("numbers",)),
        ("It costs -$50.", "Es kostet -50 $.", ()),
        ("Es sind minus 20 Grad.", "It is -20 degrees.", ()),
        ("Es sind 20 Grad.", "It is -20 degrees.", ("numbers",)),
        ("pages 5-10, and 20 - 30", "Seiten 5 bis 10 und 20 bis 30", ()),
        ("We are open 10:30–12:00.", "Wir haben 10:30:00 Uhr geöffnet.", ("numbers",)),
        ("We are open 10:30–12:00.", "Wir haben 10:30 bis 12 Uhr geöffnet.", ()),
        ("Um 7.30 Uhr und 19.45 Uhr.", "At 7:30 and 9:45.", ("numbers",)),
        ("Um 7.30 Uhr und 19.45 Uhr.", "At 7:30 AM and 7:45 PM.", ()),
        ("Mo–Fr 9–17 Uhr", "Mon–Fri 9:17 a.m.", ("numbers",)),
        ("Mo–Fr 9–17 Uhr", "Mon–Fri 9 a.m.–5 p.m.", ()),
        ("from 3 p.m. to 5 p.m. today", "heute von 15 bis 17 Uhr", ()),
        ("at 5:45", "um Viertel vor 6 Uhr", ()),
        ("at 3 p.m. today", "heute um 16 Uhr", ("numbers",)),
        ("Rendez-vous à 17h30.", "Meeting at 5:30 pm.", ()),
        ("Rendez-vous à 17 h 30.", "Meeting at 5:40 pm.", ("numbers",)),
        ("Er braucht 36 h.", "It takes 36 hours.", ()),
        ("Er braucht 36 h.", "It takes 37 hours.", ("numbers",)),
        ("Er braucht 1,75 h.", "It takes 1.75 hours.", ()),
        ("It takes 2 h 30 min.", "Es dauert 2 Stunden 30 Minuten.", ()),
        ("Alle 6 h 20 mg", "20 mg every 6 hours", ()),
        ("Rendez-vous à 17\u00a0h\u00a030.", "Meeting at 5:30 pm.", ()),
        ("24h geöffnet", "Open 24 hours", ()),
        ("one two three four five six", "eins zwei drei", ()),
        ("one two three four five six seven", "eins zwei drei", ("length",)),
        ("one two three four five", "eins", ()),
        ("one two three four five six seven", "一二三四", ()),
        ("one two three four five six seven", "einszweidreivierfünfsechssieben acht", ()),
    ],
)
def test_what_is_implausible(source, translation, expected):
    assert implausibilities(source, translation, len(source.split()), len(translation.split())) == expected


def test_lengths():
    assert implausibilities("a", "b", 12, 36) == ()
    assert implausibilities("a", "b", 12, 37) == implausibilities("a", "b", 37, 12) == ("length",)
    assert implausibilities("a", "b", 1, 11) == ()


@given(
    before=st.text("abc ", max_size=20),
    part=st.text("xyz", min_size=1, max_size=20),
    after=st.text("abc ", max_size=20),
    times=st.integers(1, 6),
)
def test_repetitions_by_brute_force(before, part, after, times):
    """A part four times in a row with at least 11 characters, in a text that has no other repetition."""
    text = f"{before}{part * times}{after}"

    def repeats(x):
        sizes = range(1, 61)
        return any(
            (x[at : at + size] * 11)[: max(4 * size - 1, 11)] == x[at : at + max(4 * size - 1, 11)]
            and any(map(str.isalnum, x[at : at + size]))
            for size in sizes
            for at in range(len(x) - max(4 * size - 1, 11) + 1)
        )

    assert ("repetition" in implausibilities("source", text, 5, 5)) == repeats(text)


def test_time_is_bounded():
    source = random.Random(1)
    random_text = "".join(source.choice("ab") for _ in range(16000))
    for text in ("a " * 8000, "x" * 16000, random_text, "<" * 16000, "1," * 8000, "-" * 16000, "A-" * 8000):
        begun = time.process_time()
        implausibilities(text, text + "b", 5, 5)
        assert time.process_time() - begun < 1.0
