// Arguments of calls; methods of texts and objects, and functions, by name.
#include <algorithm>
#include <map>

#include "core/check.h"
#include "data/chat/builtins.h"
#include "data/chat/characters.h"

namespace ring::chat {
namespace {

constexpr std::int64_t kLongestRange = 100000;

using Method = Value (*)(const Value&, Arguments&);
using Function = Value (*)(Arguments&);

// Letters of ASCII change; what Unicode says of others is not known here.
std::string cased(const std::string& text, bool (*upper)(const std::string& text, std::size_t at)) {
  std::string out = text;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (static_cast<unsigned char>(text[i]) >= 0x80)
      fail("upper, lower, capitalize and title are supported for ASCII only, this is '", text.substr(0, 40), "'");
    out[i] = static_cast<char>(upper(text, i) ? std::toupper(text[i]) : std::tolower(text[i]));
  }
  return out;
}
bool always(const std::string&, std::size_t) { return true; }
bool never(const std::string&, std::size_t) { return false; }
bool at_begin(const std::string&, std::size_t at) { return at == 0; }
bool at_words(const std::string& text, std::size_t at) {
  return at == 0 || !std::isalpha(static_cast<unsigned char>(text[at - 1]));
}

Value stripped(const Value& of, Arguments& a, bool left, bool right) {
  const Value* set = a.find(0, "chars");
  return std::string(strip(of.text(), left, right, set && !set->is<None>() ? &set->text() : nullptr));
}

Value cut(const Value& of, Arguments& a) {
  const Value *separator = a.find(0, "sep"), *most = a.find(1, "maxsplit");
  std::vector<Value> parts;
  for (std::string& part : split(of.text(), separator && !separator->is<None>() ? &separator->text() : nullptr,
                                 most ? most->integer() : -1))
    parts.emplace_back(std::move(part));
  return Value::list(std::move(parts));
}

Value with_other(const Value& of, Arguments& a) {
  const Value* most = a.find(2, "count");
  return replaced(of.text(), a.need(0, "old").text(), a.need(1, "new").text(), most ? most->integer() : -1);
}

Value begins(const Value& of, Arguments& a, bool (*holds)(const std::string& text, const std::string& part)) {
  const Value& part = a.need(0, "prefix");
  if (!part.is_list()) return holds(of.text(), part.text());
  return std::ranges::any_of(part.items().items, [&](const Value& p) { return holds(of.text(), p.text()); });
}

Value found_at(const Value& of, Arguments& a) {
  const std::size_t at = of.text().find(a.need(0, "sub").text());
  if (at == std::string::npos) return std::int64_t{-1};
  return static_cast<std::int64_t>(character_count(std::string_view(of.text()).substr(0, at)));
}

Value count_of(const Value& of, Arguments& a) {
  const std::string& part = a.need(0, "sub").text();
  if (part.empty()) return static_cast<std::int64_t>(character_count(of.text()) + 1);
  std::int64_t count = 0;
  for (std::size_t at = 0; (at = of.text().find(part, at)) != std::string::npos; at += part.size()) ++count;
  return count;
}

Value between(const Value& of, Arguments& a) {
  Arguments separator({of}, {});
  return call_filter("join", Value::list(items_of(a.need(0, "iterable"))), separator);
}

Value get(const Value& of, Arguments& a) {
  const Value& name = a.need(0, "key");
  const Value* otherwise = a.find(1, "default");
  const Value* found = name.is_text() ? of.members().find(name.text()) : nullptr;
  return found ? *found : otherwise ? *otherwise : Value(None{});
}

// Names, values, or lists of both.
Value members(const Value& of, bool names, bool values) {
  std::vector<Value> out;
  for (const auto& [name, value] : of.members().members)
    out.push_back(!values ? Value(name) : !names ? value : Value::list({Value(name), value}));
  return Value::list(std::move(out));
}

bool starts_with(const std::string& t, const std::string& p) { return t.starts_with(p); }
bool ends_with(const std::string& t, const std::string& p) { return t.ends_with(p); }

const std::map<std::string, Method, std::less<>>& text_methods() {
  static const std::map<std::string, Method, std::less<>> all{
      {"capitalize", [](const Value& v, Arguments&) { return Value(cased(v.text(), at_begin)); }},
      {"count", count_of},
      {"endswith", [](const Value& v, Arguments& a) { return begins(v, a, ends_with); }},
      {"find", found_at},
      {"join", between},
      {"lower", [](const Value& v, Arguments&) { return Value(cased(v.text(), never)); }},
      {"lstrip", [](const Value& v, Arguments& a) { return stripped(v, a, true, false); }},
      {"replace", with_other},
      {"rstrip", [](const Value& v, Arguments& a) { return stripped(v, a, false, true); }},
      {"split", cut},
      {"startswith", [](const Value& v, Arguments& a) { return begins(v, a, starts_with); }},
      {"strip", [](const Value& v, Arguments& a) { return stripped(v, a, true, true); }},
      {"title", [](const Value& v, Arguments&) { return Value(cased(v.text(), at_words)); }},
      {"upper", [](const Value& v, Arguments&) { return Value(cased(v.text(), always)); }},
  };
  return all;
}

const std::map<std::string, Method, std::less<>>& dict_methods() {
  static const std::map<std::string, Method, std::less<>> all{
      {"get", get},
      {"items", [](const Value& v, Arguments&) { return members(v, true, true); }},
      {"keys", [](const Value& v, Arguments&) { return members(v, true, false); }},
      {"values", [](const Value& v, Arguments&) { return members(v, false, true); }},
  };
  return all;
}

Value range(Arguments& a) {
  const Value &first = a.need(0, ""), *second = a.find(1, ""), *third = a.find(2, "");
  const std::int64_t begin = second ? first.integer() : 0, end = second ? second->integer() : first.integer();
  const std::int64_t step = third ? third->integer() : 1;
  if (step == 0) fail("range: a step of 0");
  std::vector<Value> out;
  for (std::int64_t at = begin; step > 0 ? at < end : at > end;) {
    out.emplace_back(at);
    if (static_cast<std::int64_t>(out.size()) > kLongestRange) fail("range: more than ", kLongestRange, " numbers");
    if (__builtin_add_overflow(at, step, &at)) break;
  }
  return Value::list(std::move(out));
}

std::vector<Member> all_named(Arguments& a) {
  for (const Member& m : a.named()) a.find(a.size(), m.first);
  return a.named();
}

Value make_namespace(Arguments& a) {
  const Value checked = Value::dict(all_named(a));
  return std::make_shared<Namespace>(Namespace{checked.members().members});
}

const std::map<std::string, Function, std::less<>>& functions() {
  static const std::map<std::string, Function, std::less<>> all{
      {"dict", [](Arguments& a) { return Value::dict(all_named(a)); }},
      {"namespace", make_namespace},
      {"raise_exception",
       [](Arguments& a) -> Value { fail("the template refuses this conversation: ", a.need(0, "message").print()); }},
      {"range", range},
  };
  return all;
}

}  // namespace

const Value* Arguments::find(std::size_t place, std::string_view name) {
  if (place < placed_.size()) {
    used_ = std::max(used_, place + 1);
    return &placed_[place];
  }
  const auto found = std::ranges::find(named_, name, &Member::first);
  if (found == named_.end()) return nullptr;
  used_names_.push_back(found->first);
  return &found->second;
}

const Value& Arguments::need(std::size_t place, std::string_view name) {
  const Value* found = find(place, name);
  if (!found) fail("argument ", place + 1, name.empty() ? "" : str(" ('", name, "')"), " is missing");
  return *found;
}

void Arguments::done(std::string_view who) const {
  if (used_ < placed_.size()) fail(who, " takes no ", placed_.size(), " arguments");
  for (const Member& m : named_)
    if (std::ranges::find(used_names_, m.first) == used_names_.end()) fail(who, " takes no argument '", m.first, "'");
}

Arguments Arguments::without(std::size_t first) const {
  std::vector<Value> rest;
  for (std::size_t i = first; i < placed_.size(); ++i) rest.push_back(placed_[i]);
  return {std::move(rest), named_};
}

Value call_method(const std::string& name, const Value& of, Arguments& a) {
  if (of.is<Undefined>()) fail("'", of.get<Undefined>()->name, "' is undefined, it has no method '", name, "'");
  const auto& methods = of.is_dict() ? dict_methods() : text_methods();
  const auto found = methods.find(name);
  if ((!of.is_dict() && !of.is_text()) || found == methods.end())
    fail("the method '", name, "' of ", of.kind(), " is not supported");
  Value out = found->second(of, a);
  a.done("the method '" + name + "'");
  return out;
}

Value call_function(const std::string& name, Arguments& a) {
  const auto found = functions().find(name);
  if (found == functions().end()) fail("the function '", name, "' is not supported");
  Value out = found->second(a);
  a.done("the function '" + name + "'");
  return out;
}

bool is_function(std::string_view name) { return functions().contains(name); }

}  // namespace ring::chat
