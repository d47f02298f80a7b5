#!/usr/bin/env python3
"""Compares chat templates with apply_chat_template of Hugging Face's transformers on random conversations: both must
write the same text with the same {% generation %} ranges, or both must refuse the conversation.

against_transformers.py RENDER [--templates FOLDER] [--conversations N]

RENDER is the program of tests/chat/render.cpp. The templates are those of tests/chat/templates, the program's built-in
ones and, if Python has the package trl, the published ones in that package (Llama 3 to 3.2, Qwen2.5 to Qwen3.6, Gemma,
Phi, ...). --templates uses all *.jinja of a folder instead.

Exits with 77, which CTest calls skipped, if transformers, tokenizers or jinja2 is missing.
"""

import argparse
import glob
import importlib.util
import json
import os
import random
import subprocess
import sys
import tempfile

try:
    import jinja2
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast
    from transformers.utils.chat_template_utils import render_jinja_template
except ImportError as e:
    print("skipped:", e)
    sys.exit(77)

WORDS = ["Hello", "how", "are", "you?", "x = 1;", "caf\u00e9", "\u4f60\u597d", "\U0001f600", "a\tb", "\"quoted\"", "'",
         "</p>", "{{ x }}", "[INST]", "\u00a0", "\u3000", "100", "\n", "\n\n", "  ", "\\", "<|im_end|>", "<think>",
         "</think>", "&amp;", "```c\nint i;\n```"]
TOOLS = [{"type": "function", "function": {
    "name": "weather", "description": "The weather \"now\".", "parameters": {
        "type": "object", "properties": {"city": {"type": "string", "description": "Z\u00fcrich"},
                                         "days": {"type": "integer"}},
        "required": ["city"]}}}]


def text(r):
    words = [r.choice(WORDS) for _ in range(r.randint(1, 12))]
    return r.choice(["", " ", "\n"]) * r.randint(0, 1) + r.choice([" ", ""]).join(words) + r.choice(["", "", " ", "\n"])


def content(r):
    return text(r) if r.random() < 0.9 else ""


def conversation(r):
    """Returns a random conversation, mostly of a form that templates expect."""
    messages = []
    if r.random() < 0.4:
        messages.append({"role": "system", "content": content(r)})
    turns = r.randint(1, 5)
    tools = r.random() < 0.3
    for i in range(turns):
        messages.append({"role": "user", "content": content(r)})
        if i + 1 == turns and r.random() < 0.2:
            break
        if tools and r.random() < 0.5:
            call = {"id": "abcdefgh%d" % (i % 10), "type": "function", "function": {
                "name": "weather", "arguments": {"city": r.choice(["Bern", "Gen\u00e8ve"]), "days": r.randint(1, 9)}}}
            messages.append({"role": "assistant", "content": r.choice(["", text(r)]), "tool_calls": [call]})
            messages.append({"role": "tool", "name": "weather", "tool_call_id": call["id"], "content": content(r)})
        answer = {"role": "assistant", "content": content(r)}
        if r.random() < 0.2:
            answer["thinking"] = answer["reasoning_content"] = content(r)  # transformers adds the second name
        if r.random() < 0.1:
            answer["content"] = "<think>\n" + content(r) + "\n</think>\n\n" + answer["content"]
        messages.append(answer)
    if r.random() < 0.1:
        odd = {"role": r.choice(["user", "critic", "tool"]), "content": content(r)}
        messages.insert(r.randrange(len(messages)), odd)
    request = {"messages": messages, "tools": TOOLS if tools else None, "documents": None,
               "add_generation_prompt": r.random() < 0.5, "bos_token": "<s>", "eos_token": "</s>",
               "date_string": "26 Jul 2024"}
    if r.random() < 0.2:
        request["enable_thinking"] = r.random() < 0.5
    return request


def tokenizer_with(template):
    """Returns a tokenizer with the template; its vocabulary does not matter for text."""
    t = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"<s>": 0, "</s>": 1}, unk_token="<s>")),
                                bos_token="<s>", eos_token="</s>")
    t.chat_template = template
    return t


def expected(template, request):
    more = {k: v for k, v in request.items() if k not in ("messages", "tools", "documents", "bos_token", "eos_token")}
    try:
        written = tokenizer_with(template).apply_chat_template(request["messages"], tools=request["tools"],
                                                               tokenize=False, **more)
        _, spans = render_jinja_template([request["messages"]], tools=request["tools"], chat_template=template,
                                         return_assistant_tokens_mask="generation" in template, bos_token="<s>",
                                         eos_token="</s>", **more)
        # Converts characters to bytes. The ranges that transformers reports are those of whole blocks of its output.
        spans = [[len(written[:a].encode()), len(written[:b].encode())] for a, b in (spans[0] if spans else [])]
        return {"text": written, "generations": [s for s in spans if s[0] < s[1]]}
    except (jinja2.exceptions.TemplateError, TypeError, ValueError) as e:
        return {"error": str(e)}


def compare(name, template, requests, answers):
    """Returns how many answers are equal, refused by both, and different."""
    equal = refused = wrong = 0
    for request, line in zip(requests, answers):
        got, want = json.loads(line), expected(template, request)
        if "error" in want and "error" in got:
            refused += 1
        elif got == want:
            equal += 1
        else:
            wrong += 1
            if wrong == 1:
                print(f"{name}:\n  for  {json.dumps(request, ensure_ascii=False)}\n  have {got}\n  want {want}")
    return equal, refused, wrong


def check(options, name, template):
    """Draws conversations until both wrote options.conversations of them, or ten times as many were drawn."""
    r = random.Random(name)
    total = [0, 0, 0]
    while total[0] < options.conversations and sum(total) < 10 * options.conversations and not total[2]:
        requests = [conversation(r) for _ in range(options.conversations)]
        counts = compare(name, template, requests, answers_of(options, template, requests))
        total = [a + b for a, b in zip(total, counts)]
    print("%s: %d equal, %d refused by both, %d differ" % (name, *total))
    return total[2] == 0


def published():
    """Returns the templates in the package trl; none if it is missing."""
    trl = importlib.util.find_spec("trl")
    return glob.glob(os.path.join(trl.submodule_search_locations[0], "chat_templates", "*.jinja")) if trl else []


def templates(options):
    """Returns the templates to compare as (name, source), without those that use unsupported features."""
    here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "templates")
    files = glob.glob(os.path.join(options.templates or here, "*.jinja")) + ([] if options.templates else published())
    found = []
    for file in sorted(files):
        with open(file, encoding="utf-8", newline="") as f:
            found.append((os.path.basename(file), f.read()))
    if not options.templates:
        named = subprocess.run([options.render], capture_output=True, text=True, check=True).stdout
        found += json.loads(named).items()
    return [(name, source) for name, source in found
            if "dictsort" not in source and ("strftime_now" not in source or "strftime_now is defined" in source)]


def answers_of(options, source, requests):
    with tempfile.NamedTemporaryFile("w", suffix=".jinja", encoding="utf-8", newline="") as file:
        file.write(source)
        file.flush()
        lines = "".join(json.dumps(request) + "\n" for request in requests)
        run = subprocess.run([options.render, file.name], input=lines, capture_output=True, text=True, check=True)
    answers = run.stdout.split("\n")[:-1]
    assert len(answers) == len(requests), run.stderr
    return answers


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("render")
    parser.add_argument("--templates")
    parser.add_argument("--conversations", type=int, default=50)
    options = parser.parse_args()
    found = templates(options)
    if not found:
        sys.exit(f"no templates in {options.templates}")
    sys.exit(not all([check(options, name, source) for name, source in found]))


main()
