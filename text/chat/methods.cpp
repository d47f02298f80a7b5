// Arguments of calls; methods of strings and objects, and functions, by name.
#include <algorithm>
#include <map>

#include "core/check.h"
#include "core/yaml.h"
#include "text/chat/builtins.h"
#include "text/chat/characters.h"

namespace ring::chat {
namespace {

constexpr std::int64_t kLongestRange = 100000;
constexpr std::size_t kShownMessage = 1000;  // maximum bytes of a message in an error

using Method = Value (*)(const Value&, Arguments&);
using Function = Value (*)(Arguments&);

// Changes the case of ASCII letters only.
Value cased(const Value& of, Arguments& a, bool (*upper)(const std::string& text, std::size_t at)) {
  const std::string& text = of.text();
  a.budget().charge_created(text.size());
  std::string out = text;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (static_cast<unsigned char>(text[i]) >= 0x80)
      fail("upper, lower, capitalize and title are supported for ASCII only, got '", text.substr(0, 40), "'");
    out[i] = static_cast<char>(upper(text, i) ? std::toupper(text[i]) : std::tolower(text[i]));
  }
  return out;
}
bool always(const std::string&, std::size_t) { return true; }
bool never(const std::string&, std::size_t) { return false; }
bool at_begin(const std::string&, std::size_t at) { return at == 0; }
bool after_other_than_letter(const std::string& text, std::size_t at) {
  return at == 0 || !std::isalpha(static_cast<unsigned char>(text[at - 1]));
}
bool after_word_border(const std::string& text, std::size_t at) {
  return at == 0 || std::string_view("-({[<").find(text[at - 1]) != std::string_view::npos ||
         is_blank(std::string_view(text).substr(at - 1, 1));
}

Value stripped(const Value& of, Arguments& a, bool left, bool right) {
  const Value* given = a.find(0, "chars");
  const std::string* set = given && !given->is<None>() ? &given->text() : nullptr;
  a.budget().charge_created(of.text().size() *
                            (1 + (set ? set->size() / 4 : 0)));  // each character is looked up in `set`
  return std::string(strip(of.text(), left, right, set));
}

Value cut(const Value& of, Arguments& a) {
  const Value *separator = a.find(0, "sep"), *max = a.find(1, "maxsplit");
  std::vector<Value> parts;
  for (std::string& part : split(of.text(), separator && !separator->is<None>() ? &separator->text() : nullptr,
                                 max ? max->integer() : -1, a.budget()))
    parts.emplace_back(std::move(part));
  return Value::list(std::move(parts));
}

Value with_other(const Value& of, Arguments& a) {
  const Value* max = a.find(2, "count");
  return replaced(of.text(), a.need(0, "old").text(), a.need(1, "new").text(), max ? max->integer() : -1, a.budget());
}

Value begins(const Value& of, Arguments& a, bool (*holds)(const std::string& text, const std::string& part)) {
  const Value& part = a.need(0, "prefix");
  if (!part.is_list()) return holds(of.text(), part.text());
  return std::ranges::any_of(part.items().items, [&](const Value& p) {
    a.budget().charge_read(p.text().size());
    return holds(of.text(), p.text());
  });
}

Value found_at(const Value& of, Arguments& a) {
  const std::size_t at = find_part(of.text(), a.need(0, "sub").text());
  if (at == std::string::npos) return std::int64_t{-1};
  return static_cast<std::int64_t>(character_count(std::string_view(of.text()).substr(0, at)));
}

Value count_of(const Value& of, Arguments& a) {
  const std::string& part = a.need(0, "sub").text();
  if (part.empty()) return static_cast<std::int64_t>(character_count(of.text()) + 1);
  std::int64_t count = 0;
  for (std::size_t at = 0; (at = find_part(of.text(), part, at)) != std::string::npos; at += part.size()) {
    a.budget().charge_steps(1);
    ++count;
  }
  return count;
}

Value between(const Value& of, Arguments& a) {
  Arguments separator({of}, {}, a.budget());
  return call_filter("join", Value::list(items_of(a.need(0, "iterable"), a.budget())), separator);
}

Value get(const Value& of, Arguments& a) {
  const Value& name = a.need(0, "key");
  const Value* otherwise = a.find(1, "default");
  if (name.is_text()) a.budget().charge_name_lookup(of.members().members.size(), name.text().size());
  const Value* found = name.is_text() ? of.members().find(name.text()) : nullptr;
  return found ? *found : otherwise ? *otherwise : Value(None{});
}

// Returns the names, the values, or [name, value] lists of an object.
Value members(const Value& of, Arguments& a, bool names, bool values) {
  std::vector<Value> out;
  for (const auto& [name, value] : of.members().members) {
    a.budget().charge_created(kValueBytes * (names && values ? 3 : 1) + (names ? name.size() : 0));
    out.push_back(!values ? Value(name) : !names ? value : Value::list({Value(name), value}));
  }
  return Value::list(std::move(out));
}

bool starts_with(const std::string& t, const std::string& p) { return t.starts_with(p); }
bool ends_with(const std::string& t, const std::string& p) { return t.ends_with(p); }

const std::map<std::string, Method, std::less<>>& text_methods() {
  static const std::map<std::string, Method, std::less<>> all{
      {"capitalize", [](const Value& v, Arguments& a) { return cased(v, a, at_begin); }},
      {"count", count_of},
      {"endswith", [](const Value& v, Arguments& a) { return begins(v, a, ends_with); }},
      {"find", found_at},
      {"join", between},
      {"lower", [](const Value& v, Arguments& a) { return cased(v, a, never); }},
      {"lstrip", [](const Value& v, Arguments& a) { return stripped(v, a, true, false); }},
      {"replace", with_other},
      {"rstrip", [](const Value& v, Arguments& a) { return stripped(v, a, false, true); }},
      {"split", cut},
      {"startswith", [](const Value& v, Arguments& a) { return begins(v, a, starts_with); }},
      {"strip", [](const Value& v, Arguments& a) { return stripped(v, a, true, true); }},
      {"title", [](const Value& v, Arguments& a) { return cased(v, a, after_other_than_letter); }},
      {"upper", [](const Value& v, Arguments& a) { return cased(v, a, always); }},
  };
  return all;
}

const std::map<std::string, Method, std::less<>>& dict_methods() {
  static const std::map<std::string, Method, std::less<>> all{
      {"get", get},
      {"items", [](const Value& v, Arguments& a) { return members(v, a, true, true); }},
      {"keys", [](const Value& v, Arguments& a) { return members(v, a, true, false); }},
      {"values", [](const Value& v, Arguments& a) { return members(v, a, false, true); }},
  };
  return all;
}

Value range(Arguments& a) {
  const Value &first = a.need(0, ""), *second = a.find(1, ""), *third = a.find(2, "");
  const std::int64_t begin = second ? first.integer() : 0, end = second ? second->integer() : first.integer();
  const std::int64_t step = third ? third->integer() : 1;
  if (step == 0) fail("range: the step is 0");
  std::vector<Value> out;
  for (std::int64_t at = begin; step > 0 ? at < end : at > end;) {
    a.budget().charge_created(kValueBytes);
    out.emplace_back(at);
    if (static_cast<std::int64_t>(out.size()) > kLongestRange) fail("range: more than ", kLongestRange, " numbers");
    if (__builtin_add_overflow(at, step, &at)) break;
  }
  return Value::list(std::move(out));
}

// Returns the named arguments as an object. Charges for each name, because find() searches linearly for it.
Value all_named(Arguments& a) {
  for (const Member& m : a.named()) {
    a.budget().charge_name_lookup(a.named().size(), m.first.size());
    a.budget().charge_created(kValueBytes + m.first.size());
    a.find(a.size(), m.first);
  }
  return Value::dict(a.named());
}

Value make_namespace(Arguments& a) { return std::make_shared<Namespace>(Namespace{all_named(a).members().members}); }

Value refuse(Arguments& a) {
  fail("the template refuses this conversation: ", shown(print(a.need(0, "message"), a.budget()), kShownMessage));
}

const std::map<std::string, Function, std::less<>>& functions() {
  static const std::map<std::string, Function, std::less<>> all{
      {"dict", all_named},
      {"namespace", make_namespace},
      {"raise_exception", refuse},
      {"range", range},
  };
  return all;
}

}  // namespace

Arguments::Arguments(std::vector<Value> placed, std::vector<Member> named, Budget& budget)
    : placed_(std::move(placed)), named_(std::move(named)), budget_(&budget) {
  std::size_t bytes = kValueBytes * (placed_.size() + named_.size());
  for (const Value& v : placed_) bytes += v.top_bytes();
  for (const Member& m : named_) bytes += m.second.top_bytes() + m.first.size();
  budget.charge_read(bytes);
}

const Value* Arguments::find(std::size_t place, std::string_view name) {
  if (place < placed_.size()) {
    used_ = std::max(used_, place + 1);
    return &placed_[place];
  }
  budget_->charge_name_lookup(named_.size(), name.size());
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

void Arguments::reject_unused(std::string_view kind, std::string_view name) const {
  if (used_ < placed_.size())
    fail("the ", kind, " '", shown_name(name), "' does not accept ", placed_.size(), " positional arguments");
  for (const Member& m : named_) {
    budget_->charge_name_lookup(used_names_.size(), m.first.size());
    if (std::ranges::find(used_names_, m.first) == used_names_.end())
      fail("the ", kind, " '", shown_name(name), "' does not accept an argument '", shown(m.first), "'");
  }
}

Arguments Arguments::without(std::size_t first) const {
  std::vector<Value> rest;
  for (std::size_t i = first; i < placed_.size(); ++i) rest.push_back(placed_[i]);
  return {std::move(rest), named_, *budget_};
}

Value capitalized_words(const Value& text, Arguments& a) { return cased(text, a, after_word_border); }

Value call_method(std::string_view name, const Value& of, Arguments& a) {
  if (of.is<Undefined>())
    fail("'", of.get<Undefined>()->name, "' is undefined, so it has no method '", shown_name(name), "'");
  const auto& methods = of.is_dict() ? dict_methods() : text_methods();
  const auto found = methods.find(name);
  if ((!of.is_dict() && !of.is_text()) || found == methods.end())
    fail("the method '", shown_name(name), "' of ", of.kind(), " is not supported");
  a.budget().charge_read(of.top_bytes());
  Value out = found->second(of, a);
  a.reject_unused("method", name);
  a.budget().check(out.bytes());
  return out;
}

Value call_function(std::string_view name, Arguments& a) {
  const auto found = functions().find(name);
  if (found == functions().end()) fail("the function '", shown_name(name), "' is not supported");
  Value out = found->second(a);
  a.reject_unused("function", name);
  a.budget().check(out.bytes());
  return out;
}

bool is_function(std::string_view name) { return functions().contains(name); }

std::vector<std::string_view> text_method_names() { return names_of(text_methods()); }
std::vector<std::string_view> dict_method_names() { return names_of(dict_methods()); }
std::vector<std::string_view> function_names() { return names_of(functions()); }

}  // namespace ring::chat
