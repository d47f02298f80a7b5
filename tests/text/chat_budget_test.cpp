// Tests the budget of chat templates: every function and operator is charged for what it reads and creates.

#include "text/chat/budget.h"

#include <gtest/gtest.h>

#include <functional>

#include "tests/data/corpus_case.h"
#include "text/chat/builtins.h"
#include "text/chat/template.h"

namespace ring::chat {
namespace {

constexpr std::size_t kText = 1 << 12, kItems = 1 << 10, kMembers = 1 << 8;

Value text(const std::string& s) { return s; }
Value number(std::int64_t n) { return n; }

Value long_list(std::size_t items = kItems) {
  std::vector<Value> all;
  for (std::size_t i = 0; i < items; ++i) all.push_back(text("item"));
  return Value::list(std::move(all));
}

Value long_dict() {
  std::vector<Member> all;
  for (std::size_t i = 0; i < kMembers; ++i) all.emplace_back("name" + std::to_string(i), number(1));
  return Value::dict(std::move(all));
}

// Returns a nested list of 2^levels numbers that shares its parts, so that it takes little memory.
Value doubled_list(int levels) {
  Value v = Value::list({number(1)});
  for (int i = 0; i < levels; ++i) v = Value::list({v, v});
  return v;
}

std::vector<Value> subjects() {
  std::string letters(kText, 'a');
  letters.back() = ' ';
  return {text(letters), text(std::string(kText, '1')), long_list(), long_dict(), number(-3), 1.5, true};
}

struct Passed {
  std::vector<Value> placed;
  std::vector<Member> named;
};

std::vector<Passed> all_arguments() {
  const Value one = text("a"), two = text("bbbb"), many = text(std::string(kText, 'b'));
  return {{},
          {{one}, {}},
          {{one, two}, {}},
          {{one, many, number(3)}, {}},
          {{number(1)}, {}},
          {{number(1), number(3000)}, {}},
          {{text("string")}, {}},
          {{text("k"), text("defined")}, {}},
          {{long_list()}, {}},
          {{long_dict()}, {}},
          {{many}, {}},
          {{}, {{"attribute", text("k")}}},
          {{}, {{"indent", number(8)}}},
          {{}, {{"x", many}, {"y", long_list()}}}};
}

std::size_t bytes_of(const Passed& p) {
  std::size_t all = 0;
  for (const Value& v : p.placed) all += v.top_bytes();
  for (const Member& m : p.named) all += m.second.top_bytes();
  return all;
}

const std::vector<Passed>& arguments() {
  static const std::vector<Passed> all = all_arguments();
  return all;
}

// Calls with every subject and all arguments, and expects that each successful call was charged. Returns the number of
// successful calls.
using Call = std::function<Value(const Value& of, Arguments&)>;
int expect_charges(std::string_view name, const std::vector<Value>& of, const Call& call) {
  int succeeded = 0;
  for (const Value& subject : of)
    for (const Passed& p : arguments()) {
      Budget budget({});
      Value out;
      try {
        Arguments a(p.placed, p.named, budget);
        out = call(subject, a);
      } catch (const Error&) {
        continue;
      }
      ++succeeded;
      const std::size_t work = std::max(subject.top_bytes() + bytes_of(p), out.top_bytes());
      EXPECT_GE((budget.steps() + 1) * Budget::kStepBytes, work) << name << " of " << subject.kind();
    }
  return succeeded;
}

TEST(ChatBudget, ChargesAllThatIsCalled) {
  const auto check = [](const std::vector<std::string_view>& names, const auto& call, bool of_subjects = true) {
    static const std::vector<Value> all = subjects(), none{number(0)};
    EXPECT_FALSE(names.empty());
    for (const std::string_view name : names) {
      const int calls = expect_charges(name, of_subjects ? all : none,
                                       [&](const Value& of, Arguments& a) { return Value(call(name, of, a)); });
      EXPECT_EQ(calls > 0, name != "raise_exception") << name;
    }
  };
  check(filter_names(), call_filter);
  check(test_names(), call_test);
  check(text_method_names(), call_method);
  check(dict_method_names(), call_method);
  check(
      function_names(),
      [](std::string_view name, const Value&, Arguments& a) {
        Value out = call_function(name, a);
        const auto* space = out.get<std::shared_ptr<Namespace>>();
        return space ? Value::dict((*space)->members) : out;
      },
      false);
}

TEST(ChatBudget, ChargesOperators) {
  const auto check = [](const std::string& name, const Value& a, const Value& b, const auto& work) {
    Budget budget({});
    const Value out = work(a, b, budget);
    EXPECT_GE((budget.steps() + 1) * Budget::kStepBytes, out.top_bytes()) << name;
    EXPECT_GE((budget.steps() + 1) * Budget::kStepBytes, std::min(a.top_bytes(), b.top_bytes())) << name;
  };
  const std::string half(kText, 'a');
  const std::vector<std::pair<Value, Value>> pairs{{text(half), text(half)}, {long_list(), long_list()}};
  for (const auto& [a, b] : pairs) {
    for (const std::string_view symbol : {"+", "~"})
      check(std::string(symbol), a, b,
            [&](const Value& x, const Value& y, Budget& budget) { return apply_binary(symbol, x, y, budget); });
    for (const std::string_view symbol : {"==", "!=", "in", "not in"})
      check(std::string(symbol), a, b,
            [&](const Value& x, const Value& y, Budget& budget) { return Value(compare(symbol, x, y, budget)); });
    for (const std::int64_t step : {1, -1})
      check("slice", a, a, [&](const Value& x, const Value&, Budget& budget) {
        const Value by = number(step);
        return slice_of(x, nullptr, nullptr, &by, budget);
      });
    check("items", a, a, [](const Value& x, const Value&, Budget& budget) { return Value::list(items_of(x, budget)); });
  }
  for (const std::string_view symbol : {"<", "<=", ">", ">="})
    check(std::string(symbol), text(half), text(half),
          [&](const Value& x, const Value& y, Budget& budget) { return Value(compare(symbol, x, y, budget)); });
  check("[]", text(half), text(half), [](const Value& x, const Value&, Budget& b) { return item_of(x, number(9), b); });
}

// A part that occurs several times in a value is charged each time it is read.
TEST(ChatBudget, ChargesDeepValues) {
  const Value a = doubled_list(16), b = doubled_list(16);
  const auto expect_leaves = [](const char* name, const auto& work) {
    Budget budget({});
    work(budget);
    EXPECT_GE(budget.steps(), std::size_t{1} << 16) << name;
  };
  const Value list = Value::list({a});
  expect_leaves("==", [&](Budget& budget) { equal(a, b, budget); });
  expect_leaves("print", [&](Budget& budget) { print(a, budget); });
  expect_leaves("json", [&](Budget& budget) { json_text(a, -1, budget); });
  expect_leaves("in", [&](Budget& budget) { contains(list, b, budget); });
  expect_leaves("is eq", [&](Budget& budget) {
    Arguments other({b}, {}, budget);
    call_test("eq", a, other);
  });
  expect_leaves("select", [&](Budget& budget) {
    Arguments test({text("equalto"), b}, {}, budget);
    call_filter("select", list, test);
  });
}

TEST(ChatBudget, ChargesSearchesForNames) {
  const Value dict = long_dict();
  Budget budget({});
  for (int i = 0; i < 100; ++i) member_of(dict, "name255", budget);
  EXPECT_GE(budget.steps(), 100 * kMembers / 20);
}

// Each template repeats an expensive operation. Without the charge for that operation it would stay below the limit,
// but under the default limit it could run for hours.
TEST(ChatBudget, HostileTemplatesEnd) {
  const Limits limits{1 << 18, std::size_t{1} << 26};
  const std::string grow =
      "{% set ns = namespace(s='a', l=[1], d={'k': 1}) %}{% for i in range(15) %}{% set ns.s = ns.s + ns.s %}"
      "{% endfor %}{% for i in range(12) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{% set l = ns.s[:2500]|list %}";
  const auto expect_end = [&](const std::string& body) {
    const Template t(grow + body, "t");
    expect_error([&] { t.render({}, limits); }, {"t:1: the template exceeds 262144 steps"});
  };
  EXPECT_LT(Template(grow, "t").render({}, limits).steps, limits.steps / 8);
  for (const char* expression : {"ns.s|upper",
                                 "ns.s|length",
                                 "ns.s|trim('b')",
                                 "ns.s.find('b')",
                                 "ns.s.count('b')",
                                 "'b' in ns.s",
                                 "ns.s == ns.s ~ ''",
                                 "ns.s is eq(ns.s)",
                                 "ns.s < ns.s",
                                 "ns.s[0]",
                                 "ns.s[::-1]",
                                 "ns.s.split('b')",
                                 "ns.s|replace('b', 'c')",
                                 "ns.s.startswith(ns.s)",
                                 "ns.s|string",
                                 "ns.s|tojson",
                                 "ns.s ~ 'a'",
                                 "ns.s + 'a'",
                                 "[ns.s]|join",
                                 "ns.s is string",
                                 "ns.s|int",
                                 "ns.l == [ns.l]|first",
                                 "ns.l|tojson(indent=64)",
                                 "ns.l|string",
                                 "ns.l in [ns.l]",
                                 "l|map('string')|first",
                                 "l|select('eq', 'b')|list",
                                 "l|join('')",
                                 "l[::2]",
                                 "l + l",
                                 "l|reverse|first",
                                 "'b' in l",
                                 "range(5000)",
                                 "dict(k=ns.s)",
                                 "ns.d.get(ns.s)",
                                 "ns.d[ns.s]"})
    expect_end(str("{% for i in range(5000) %}{% if ", expression, " %}{% endif %}{% endfor %}"));
  expect_end("{% for i in range(5000) %}{% for j in l %}{% break %}{% endfor %}{% endfor %}");
  expect_end("{% macro f(x) %}{% endmacro %}{% for i in range(5000) %}{{ f(ns.s) }}{% endfor %}");
}

// Without a limit these templates would take gigabytes of memory.
TEST(ChatBudget, HostileTemplatesTakeLittleMemory) {
  const Limits limits{std::size_t{1} << 26, 1 << 20};
  const auto expect_end = [&](const std::string& source, const std::string& why) {
    const Template t(source, "t");
    expect_error([&] { t.render({}, limits); }, {"t:1: ", why});
  };
  const std::string deep =
      "{% set ns = namespace(l=[1]) %}{% for i in range(12) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}"
      "{% for i in range(80) %}{% set ns.l = [ns.l] %}{% endfor %}";
  expect_end(deep + "{{ ns.l|tojson(indent=64) }}", "exceeds 1048576 bytes");
  const std::string grown =
      "{% set ns = namespace(s='a') %}{% for i in range(19) %}{% set ns.s = ns.s + ns.s %}{% endfor %}";
  expect_end(grown + "{{ ns.s|replace('a', ns.s) }}", "exceeds 1048576 bytes");
  expect_end(grown + "{{ ns.s|list }}", "creates more than 4194304 bytes of strings, lists and objects");
  std::string kept = grown;
  for (int i = 0; i < 9; ++i) kept += str("{% set x", i, " = ns.s ~ ", i, " %}");
  expect_end(kept, "more than 4194304 bytes of strings, lists and objects");
}

}  // namespace
}  // namespace ring::chat
