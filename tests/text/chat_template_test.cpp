// Chat templates: expressions and statements behave as Jinja's documentation says. tests/chat compares with
// transformers.

#include "text/chat/template.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/data/corpus_case.h"

namespace ring::chat {
namespace {

std::string render(const std::string& source, const std::string& variables = "{}", const Limits& limits = {}) {
  std::vector<Member> members;
  const auto json = nlohmann::ordered_json::parse(variables);
  for (const auto& [name, value] : json.items()) members.emplace_back(name, from_json(value));
  return Template(source, "t").render(std::move(members), limits).text;
}

struct Case {
  std::string source, text;
};

void expect_all(const std::vector<Case>& cases, const std::string& variables = "{}") {
  for (const auto& [source, text] : cases) EXPECT_EQ(render(source, variables), text) << source;
}

TEST(ChatTemplate, ExpressionsAreEvaluated) {
  expect_all(
      {{"{{ 1 + 2 * 3 }} {{ (1 + 2) * 3 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }}", "7 9 3 -4 2 3.5"},
       {"{{ 1 ~ 'a' ~ 2 * 3 }}", "1a6"},
       {"{{ 'a' if true else 'b' }}{{ 'a' if false else 'b' }}{{ 'a' if false }}", "ab"},
       {"{{ 1 < 2 < 3 }} {{ 1 < 2 > 3 }} {{ 'a' in 'cat' }} {{ 'k' not in {'k': 1} }}", "True False True False"},
       {"{{ not true or true and false }} {{ none or 'x' }} {{ 'x' and '' }}|", "False x |"},
       {"{{ [1, 'a', none, true, 2.0, {'k': 'v'}] }}", "[1, 'a', None, True, 2.0, {'k': 'v'}]"},
       {"{{ 'x\\n\\t\\'\\u00e9\\x41' }}{{ 'a' 'b' }}",
        "x\n\t'\xC3\xA9"
        "Aab"},
       {"{{ true == 1 }} {{ 1 == 1.0 }} {{ '1' == 1 }} {{ [1] == [1] }} {{ {'a': 1} == {'a': 1} }}",
        "True True False True True"},
       {"{{ -x|abs if x is defined else 'no' }}", "no"}});
}

TEST(ChatTemplate, MembersItemsAndSlicesAreRead) {
  const std::string variables = R"({"m": {"role": "user", "n": [10, 20, 30]}, "s": "aé😀z"})";
  expect_all({{"{{ m.role }}{{ m['role'] }}{{ m.n[0] }}{{ m.n[-1] }}{{ m.n.1 }}", "useruser103020"},
              {"{{ m.none }}{{ m['none'] }}{{ m.n[9] }}{{ gone }}|", "|"},
              {"{{ s[1] }}{{ s[2] }}{{ s[::-1] }}{{ s[1:3] }}{{ s|length }}", "é😀z😀éaé😀4"},
              {"{{ m.n[1:] }}{{ m.n[:-1] }}{{ m.n[::2] }}{{ m.n[5:] }}{{ m.n[::-1] }}",
               "[20, 30][10, 20][10, 30][][30, 20, 10]"},
              {"{{ m.items()|list }}{{ m.get('x') is none }}{{ m.get('x', 1) }}{{ m.keys()|list }}",
               "[['role', 'user'], ['n', [10, 20, 30]]]True1['role', 'n']"}},
             variables);
}

TEST(ChatTemplate, FiltersAndTestsAreApplied) {
  const std::string variables = R"({"l": [{"r": "a", "t": 1}, {"r": "b"}, {"r": "a"}], "d": {"z": [1], "y": "q\"\n"}})";
  expect_all(
      {{"{{ ' \\u3000x '|trim }}|{{ 'xax'|trim('x') }}|{{ 'a,b'.split(',') }}|{{ ' a  b '.split() }}",
        "x|a|['a', 'b']|['a', 'b']"},
       {"{{ l|selectattr('r', 'equalto', 'a')|list|length }}{{ l|rejectattr('t', "
        "'defined')|map(attribute='r')|join('-') }}",
        "2b-a"},
       {"{{ d|tojson }}", R"({"z": [1], "y": "q\"\n"})"},
       {"{{ d|tojson(indent=2) }}", "{\n  \"z\": [\n    1\n  ],\n  \"y\": \"q\\\"\\n\"\n}"},
       {"{{ x|default('d') }}{{ ''|default('d', true) }}{{ l|first is mapping }}{{ 'a' is string }}{{ 3 is odd }}",
        "ddTrueTrueTrue"},
       {"{{ 1 is not none }}{{ none is none }}{{ d.z is iterable and d.z is not string }}{{ 4 is eq 4 }}",
        "TrueTrueTrueTrue"},
       {"{{ 'abc'.startswith('ab') }}{{ 'abc'.endswith(['x', 'c']) }}{{ 'aXbX'.replace('X', '-', 1) }}{{ "
        "'tool'|capitalize }}",
        "TrueTruea-bXTool"},
       {"{{ 'a</think>b</think>\\n\\nc'.split('</think>')[-1].lstrip('\\n') }}", "c"},
       {"{{ range(3)|list }}{{ range(5, 0, -2)|list }}{{ [1, 2]|map('string')|list }}",
        "[0, 1, 2][5, 3, 1]['1', '2']"}},
      variables);
}

// Expected results are those of jinja2 3.1.6 on Python 3.12.
TEST(ChatTemplate, TheFilterTitleDiffersFromTheMethod) {
  expect_all(
      {{"{{ \"it's 3rd a_b x-ray (he [she {we <they 'tis\" | title }}", "It's 3rd A_b X-Ray (He [She {We <They 'tis"},
       {"{{ \"it's 3rd a_b x-ray\".title() }}", "It'S 3Rd A_B X-Ray"},
       {"{{ 'tWO\twORDS' | title }}{{ true | title }}", "Two\tWordsTrue"}});
}

TEST(ChatTemplate, TheFilterIntReadsTextsAsPythonDoes) {
  expect_all({{"{{ '3.9'|int }} {{ '-3.9'|int }} {{ ' +7 '|int }} {{ '1_000'|int }} {{ '-5'|int }} {{ '1e3'|int }}",
               "3 -3 7 1000 -5 1000"},
              {"{{ 'x'|int }} {{ 'x'|int(9) }} {{ ''|int(default=4) }} {{ '0x10'|int }} {{ '+-5'|int }} {{ '_5'|int }}",
               "0 9 4 0 0 0"},
              {"{{ 3.9|int }} {{ true|int }} {{ none|int }} {{ [1]|int }} {{ 'inf'|int }} {{ 'nan'|int(2) }}",
               "3 1 0 0 0 2"}});
}

#ifdef RING_WITH_UTF8PROC
// Expected results are those of repr() in Python 3.11 (Unicode 14), for characters that str.isprintable() rejects.
TEST(ChatTemplate, TextsInListsArePrintedAsPythonDoes) {
  expect_all({{"{{ [s] }}", "['x\\xa0y\\u200b\\x7f\\x01é\\U000e0001🙂\\u2028\\ue000\\xad\\u3000']"},
              {"{{ [q] }}", "[\"'\"]"}},
             R"({"s": "x\u00a0y\u200b\u007f\u0001é\udb40\udc01🙂\u2028\ue000\u00ad\u3000", "q": "'"})");
}
#endif

TEST(ChatTemplate, StatementsAreExecuted) {
  expect_all(
      {{"{% for x in [3, 4] %}{{ loop.index }}{{ loop.first }}{{ loop.last }}{{ x }};{% endfor %}",
        "1TrueFalse3;2FalseTrue4;"},
       {"{% for x in [] %}a{% else %}none{% endfor %}", "none"},
       {"{% for k, v in {'a': 1}.items() if v %}{{ k }}{{ v }}{% endfor %}", "a1"},
       {"{% for x in range(9) if x % 2 %}{{ x }}/{{ loop.length }} {% endfor %}", "1/4 3/4 5/4 7/4 "},
       {"{% for x in range(9) %}{% if x == 1 %}{% continue %}{% elif x > 2 %}{% break %}{% endif %}{{ x }}{% endfor %}",
        "02"},
       {"{% set x = 1 %}{% for y in [2] %}{% set x = y %}{% endfor %}{{ x }}", "1"},  // a loop has its own scope
       {"{% set ns = namespace(x=1) %}{% for y in [2] %}{% set ns.x = ns.x + y %}{% endfor %}{{ ns.x }}", "3"},
       {"{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set t %}in {{ a }}{% endset %}{{ t|upper }}", "12IN 1"},
       {"{% macro f(x, y='d') %}<{{ x }}{{ y }}>{% endmacro %}{{ f(1) }}{{ f(1, y=2) }}{{ f('a')|length }}",
        "<1d><12>4"},
       {"{# c #}a{#- c -#} b {% if 0 %}x{% else %}y{% endif %}", "ab y"}});
}

// Expected results are those of Jinja with trim_blocks and lstrip_blocks.
TEST(ChatTemplate, BlankSpaceAroundTagsIsTrimmed) {
  expect_all({{"a\n  {% if 1 %}\n  b\n  {% endif %}\nc\n", "a\n  b\nc"},
              {"a\n  {{ 1 }}\nb", "a\n  1\nb"},
              {"a \n {%- if 1 -%} \n b {%- endif %} c", "ab c"},
              {"a\n  {%+ if 1 %}b{% endif +%}\nc", "a\n  b\nc"},
              {"  {% set x = 1 %}  {{ x }}", "  1"},
              {"a\r\n{{ '\\r\\n' }}\r\n", "a\n\r\n"},
              {"{# c #}\n  {# d #}\nx", "x"}});
}

// Blank space is Python's, which includes U+00A0 and U+3000.
TEST(ChatTemplate, BlankSpaceIsThatOfUnicode) {
  expect_all({{"a \xC2\xA0\n{%- if true %}b{% endif -%}\xE3\x80\x80 c", "abc"},
              {"{{ 'a' -}} \xC2\xA0 b", "ab"},
              {"a\n\xC2\xA0\xE3\x80\x80 {% if true %}\nx{%\xC2\xA0" "endif %}", "a\nx"},
              {"{% for x in [1] %}{{ loop.depth }}{{ loop.depth0 }}{% endfor %}", "10"}});
}

TEST(ChatTemplate, GeneratedTextIsMarked) {
  const Template t("{% for m in messages %}{{ m }}:{% generation %}{{ m }}!{% endgeneration %}\n{% endfor %}", "t");
  EXPECT_TRUE(t.marks_generation());
  const Rendered r = t.render({{"messages", Value::list({Value(std::string("é")), Value(std::string("b"))})}});
  EXPECT_EQ(r.text, "é:é!b:b!");
  EXPECT_EQ(r.generations, (std::vector<std::pair<std::size_t, std::size_t>>{{3, 6}, {8, 10}}));
  EXPECT_FALSE(Template("{{ 1 }}", "t").marks_generation());
}

TEST(ChatTemplate, ErrorsNameTheLineAndTheUnsupportedFeature) {
  const auto wrong = [](const std::string& source, const std::string& part) {
    expect_error([&] { render("\n\n" + source); }, {"t:3: ", part});
  };
  wrong("{{ 1", "has no end '}}'");
  wrong("{% if 1 %}", "expected {% endif %}, got the end");
  wrong("{% endif %}", "no matching opening tag");
  wrong("{{ 1 + }}", "expected an expression, got '}}'");
  wrong("{{ 'a }}", "this string has no end");
  wrong("{# a", "has no end '#}'");
  wrong("{{ x|pprint }}", "the filter 'pprint' is not supported");
  wrong("{{ 1 is prime }}", "the test 'prime' is not supported");
  wrong("{{ 'a'.encode() }}", "the method 'encode' of a string is not supported");
  wrong("{{ [1].append(2) }}", "the method 'append' of a list is not supported");
  wrong("{{ strftime_now('%d') }}", "'strftime_now' is called, but is undefined");
  wrong("{% include 'x' %}", "{% include %} is not supported");
  wrong("{% raw %}", "{% raw %} is not supported");
  wrong("{{ 2 ** 3 }}", "'**' is not supported");
  wrong("{{ f(*x) }}", "arguments with '*' are not supported");
  wrong("{{ x.y }}", "'x' is undefined, so it has no y");
  wrong("{{ 'a' + 1 }}", "operator '+' is not defined for a string and the number 1");
  wrong("{{ 1 // 0 }}", "division by zero");
  wrong("{{ 9223372036854775807 + 1 }}", "too large");
  wrong("{{ 'é'|upper }}", "for ASCII only");
  wrong("{{ 'a'|trim('a', 'b') }}", "does not accept 2 positional arguments");
  wrong("{% set x.y = 1 %}", "not a namespace");
  wrong("{% break %}", "outside a loop");
  wrong("{% macro f() %}{% generation %}{% endgeneration %}{% endmacro %}", "inside a macro");
  wrong("{{ raise_exception('roles must alternate') }}", "refuses this conversation: roles must alternate");
}

// Each template would take unbounded time, memory or stack.
TEST(ChatTemplate, IsBounded) {
  const Limits small{100000, 100000};
  const auto wrong = [&](const std::string& source, const std::string& part) {
    expect_error([&] { render(source, "{}", small); }, {"t:1: ", part});
  };
  const auto takes_long = [](const std::string& source, const std::string& part) {
    expect_error([&] { render(source, "{}", {200000, 1 << 24}); }, {"t:1: ", part});
  };
  const std::string many = "{% for a in range(1000) %}{% for b in range(1000) %}x{% endfor %}{% endfor %}";
  takes_long(many, "exceeds 200000 steps");
  wrong("{% set ns = namespace(s='aaaaaaaaaa') %}{% for a in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "exceeds 100000 bytes");
  takes_long("{% set s = 'a' %}{% for a in range(200000) %}{% endfor %}", "range: more than 100000");
  wrong("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "macros call each other more than 20 times");
  wrong("{% set ns = namespace(l=[]) %}{% for a in range(200) %}{% set ns.l = [ns.l] %}{% endfor %}",
        "nested more than 100");
  // The list contains one value many times.
  const std::string doubled =
      "{% set ns = namespace(l=[1]) %}{% for a in range(40) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}";
  wrong(doubled, "including its contents");
  expect_error([&] { render(doubled + "{{ ns.l == ns.l }}"); }, {"t:1: ", "including its contents"});
  const std::string grown =
      "{% set ns = namespace(s='a') %}{% for a in range(16) %}{% set ns.s = ns.s + ns.s %}{% endfor %}";
  for (const char* use : {"{{ ns.s|replace('a', ns.s) }}", "{{ ns.s|list|join(ns.s) }}"})
    expect_error([&] { render(grown + use, "{}", {1 << 26, 1 << 22}); }, {"t:1: ", "exceeds 4194304 bytes"});
  wrong("{% set ns = namespace() %}{% set ns.x = ns %}", "a namespace cannot be part of");
  wrong("{{ " + std::string(5000, '(') + "1" + std::string(5000, ')') + " }}", "nested more than 100");
  std::string sum = "1";
  for (int i = 0; i < 5000; ++i) sum += "+1";
  wrong("{{ " + sum + " }}", "nested more than 100");
  std::string ifs;
  for (int i = 0; i < 5000; ++i) ifs += "{% if 1 %}";
  wrong(ifs, "nested more than 50");
  EXPECT_EQ(render("{{ 'ab' }}", "{}", {100, 2}), "ab");
  expect_error([] { render("{{ 'abc' }}", "{}", {100, 2}); }, {"exceeds 2 bytes"});
}

}  // namespace
}  // namespace ring::chat
