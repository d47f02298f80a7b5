#pragma once
// Configuration: one `fields` member per struct drives YAML parsing, `a.b=c` overrides, checks, printing, diffs between
// two runs, and the reference in docs/configuration.md.
//
//   struct OptimizerConfig {
//     double lr = 3e-4;                      // the initialiser is the default
//     NormKind norm = NormKind::rms;
//     std::vector<Corpus> mixture;           // Corpus has fields() too
//     void fields(Fields& f) {
//       f("lr", lr, "peak learning rate", in_range(1e-20, 1000));
//       f("norm", norm, "kind of norm", choices<NormKind>({{"rms", NormKind::rms}, {"layer", NormKind::layer}}));
//       f("threads", threads, "of this process", in_range(0, 4096), rank_local());  // may differ between ranks
//       f("mixture", mixture, "corpora and their weights", non_empty(), at_most_items(1024));
//     }
//     void validate(std::vector<SettingProblem>& errors) const;  // optional: rules over several fields
//   };
//
// An integer may have words for values outside of its range, such as word("auto", -1). With by_tokens(changes), a
// number may change during training (core/token_schedule.h): settings may give it as [[0, 32], [1e9, 64]], and the
// number itself then holds the largest value.
//
// A field is a bool, an integer, a double, a string, an enum (with choices), a std::optional of
// one of these, a struct with fields(), or a std::vector of any of these except bool and optional.
// Every number must state both ends of its range, and all code that uses the number must handle
// the whole range. Every list must state its maximum length. Otherwise RING_CHECK fails.

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "core/check.h"
#include "core/setting_problem.h"
#include "core/token_schedule.h"

namespace ring {

class Fields;

namespace config {

// A type-erased scalar. monostate stands for an unset optional, and a choice is stored as its name.
using Value = std::variant<std::monostate, bool, std::int64_t, double, std::string>;

enum class Kind { boolean, integer, number, text, choice, section, list };

struct Field;

// Words that users know from other programs, in lower case with underscores. They are only used in hints: the message
// about an unknown key or value names the setting that was probably meant. The code that reads a user's settings passes
// them.
struct Synonyms {
  struct Key {
    std::string_view word;         // "n_layer", or with its section: "optimizer.type"
    std::string_view key;          // our full key; "" if there is no equivalent
    std::string_view advice = "";  // added to the hint, or the whole hint if there is no key
  };
  struct Value {
    std::string_view key;    // end of our key, such as "attention.kind"
    std::string_view word;   // word in the other program
    std::string_view value;  // our value; "" if there is no equivalent
    std::string_view advice = "";
  };
  std::span<const Key> keys;
  std::span<const Value> values;
};

// A view of one part of a config: a section, a list or a scalar. Resizing a list invalidates the views of its elements.
struct Node {
  Kind kind = Kind::section;
  // Only for scalars:
  bool optional = false;
  std::vector<std::string> choices;  // valid names of an enum, or special words of an integer
  std::function<Value()> get;
  std::function<std::string(const Value&)> set;  // returns what is wrong, or "" if the value was set
  long double type_min = 0, type_max = 0;        // numbers: limits of the C++ type
  TokenSchedule* by_tokens = nullptr;            // numbers: the schedule; null if it cannot change
  // Only for sections:
  std::vector<Field> fields;
  std::function<void(std::vector<SettingProblem>&)> validate;  // null if there are no rules over several fields
  const Synonyms* synonyms = nullptr;                          // set at the root only; may be null
  // Only for lists:
  std::function<std::size_t()> size;
  std::function<void(std::size_t)> reset;  // replaces the list by this many default elements
  std::function<Node(std::size_t)> element;
  std::function<Node()> prototype;  // a default element, for the reference
  std::size_t max_items = 0;        // maximum length, from the field's rules

  bool scalar() const { return kind != Kind::section && kind != Kind::list; }
};

}  // namespace config

// A condition on a value. If the value is a list, non_empty() and at_most_items() apply to the list, and all other
// checks apply to each element.
struct Check {
  std::string text;  // completes "must be ...": "> 0", "a multiple of 8"
  std::function<bool(const config::Value&)> passes;
  bool of_length = false;               // true if `passes` receives the length of a list
  std::optional<long double> min, max;  // bounds of a number or of a list's length
};

// Numbers are compared as long double, which holds every integer of 64 bits exactly.
static_assert(std::numeric_limits<long double>::digits >= 64);

Check positive();  // requires a value > 0
Check at_least(long double min);
Check at_most(long double max);
Check in_range(long double min, long double max);  // both ends are inclusive
Check non_empty();                                 // for strings and lists; if empty by default, the key is mandatory
Check at_most_items(std::size_t max);
Check one_of(std::vector<std::string> names);
Check check_number(std::string text, std::function<bool(long double)> passes);
Check check_text(std::string text, std::function<bool(const std::string&)> passes);

// Marks a field that may differ between ranks: file paths, threads. All other fields must be equal on all ranks.
struct RankLocal {};
constexpr RankLocal rank_local() { return {}; }

// Page below docs/, with an anchor, that explains a field in more detail than its one-line text:
// docs_page("memory.md#offload").
struct DocsPage {
  std::string link;
};
inline DocsPage docs_page(const char* link) { return {link}; }

// A word for one value of an integer. No check applies to that value. On a section, `value` is not used: if the word is
// given in place of the section, it sets all integers of the section that accept this word.
struct Word {
  std::string name;
  std::int64_t value;
};
inline Word word(const char* name, std::int64_t value) { return {name, value}; }

struct ByTokens {
  TokenSchedule* changes;
};
inline ByTokens by_tokens(TokenSchedule& changes) { return {&changes}; }

template <class E>
struct Choices {
  std::vector<std::pair<std::string, E>> names;
};
template <class E>
Choices<E> choices(std::initializer_list<std::pair<const char*, E>> names) {
  return {{names.begin(), names.end()}};
}

struct config::Field {
  std::string name, text;
  std::vector<Check> checks;
  Node node;
  bool rank_local = false;  // also applies to all nested fields
  std::string page = {};    // link below docs/; "" if the one-line text says everything
};

template <class C>
concept HasFields = requires(C& c, Fields& f) {
  c.fields(f);
};

// Collects the fields of one struct.
class Fields {
 public:
  // text: one line of at most config::kMaxHelp characters. Rules: any number of Check and Word, rank_local(),
  // by_tokens(), docs_page(), and for an enum one Choices of its type.
  template <class T, class... Rules>
  void operator()(const char* name, T& value, const std::string& text, const Rules&... rules);

  std::vector<config::Field> take() { return std::move(fields_); }

 private:
  std::vector<config::Field> fields_;
};

// --- operations ---
//
// Loading throws one Error with all mistakes, one line each: "file:line: key: what is wrong", and leaves the config
// unchanged. If there are many mistakes, it shows the first 20 and the count of the others. A file may start from other
// files: `include: base.yaml` (relative to the file, or a list of files). A file that is included several times is read
// once, at its first occurrence. validate() is called on every section without mistakes. A message that starts with the
// name of one of the section's fields gets that field's line.

namespace config {
// Largest integer that a Value can hold.
inline constexpr std::uint64_t kMaxInteger = std::numeric_limits<std::int64_t>::max();
inline constexpr std::size_t kMaxHelp = 100;  // characters of a field's text; a test checks the trainer's settings
inline constexpr std::size_t kMaxSettingsBytes = 1 << 20;  // maximum size of one file, and of all settings as printed
struct Source {
  std::string name;  // the file's name in errors; includes are relative to its folder
  std::string text;
};
// Throws Error as read_text_file(file, kMaxSettingsBytes) does, and if the file is not UTF-8.
Source read_source(const std::string& file);
void load(const Node& root, const std::vector<Source>& sources, const std::vector<std::string>& overrides);
std::string to_yaml(const Node& root);
std::vector<std::pair<std::string, std::string>> global_values(const Node& root);
std::string describe(const Node& root);
// Throws Error if the name is invalid or taken, if a number lacks an end of its range, or if a list lacks its maximum
// length.
void add_field(std::vector<Field>& fields, Field field);
std::string to_text(const Value& value);  // returns the value as YAML
}  // namespace config

inline constexpr std::uint64_t kHashOfNothing = 14695981039346656037ull;
// Returns the 64-bit FNV-1a hash of a string. To hash a string in pieces, pass the hash of the preceding pieces.
std::uint64_t hash_text(const std::string& text, std::uint64_t previous_hash = kHashOfNothing);

// Returns the differences of two printed configs as "key: old -> new", in the order of the new config. Leaves out keys
// that equal an ignored key ("train", "data.mixture[0]") or are inside it. Throws Error if a string is not YAML.
std::vector<std::string> diff_yaml(const std::string& old_text, const std::string& new_text,
                                   const std::vector<std::string>& ignore = {});

// Returns a view of `config`. The synonyms are used in hints of messages; null if there are none.
template <class C>
config::Node bind_config(C& config, const config::Synonyms* = nullptr);

template <class C>
void load_config(C& config, const std::string& yaml_file, const std::vector<std::string>& overrides = {},
                 const config::Synonyms* synonyms = nullptr) {
  C copy = config;
  config::load(bind_config(copy, synonyms), {config::read_source(yaml_file)}, overrides);
  config = std::move(copy);
}

template <class C>
void load_config_text(C& config, const std::string& text, const std::string& name,
                      const std::vector<std::string>& overrides = {}, const config::Synonyms* synonyms = nullptr) {
  C copy = config;
  config::load(bind_config(copy, synonyms), {config::Source{name, text}}, overrides);
  config = std::move(copy);
}

// Applies overrides only (`a.b=c`, `list[0].key=c`), then checks and validates the result.
template <class C>
void override_config(C& config, const std::vector<std::string>& overrides, const config::Synonyms* synonyms = nullptr) {
  C copy = config;
  config::load(bind_config(copy, synonyms), {}, overrides);
  config = std::move(copy);
}

// Returns every key, in the order of the fields. Loading the text gives the same config.
template <class C>
std::string to_yaml(C config) {
  return config::to_yaml(bind_config(config));
}

// Returns the settings that must be equal on all ranks: keys and values as YAML, in the order of the fields. A list of
// scalars is one value. A list of sections gives its length and the fields of each element.
template <class C>
std::vector<std::pair<std::string, std::string>> global_values(C config) {
  return config::global_values(bind_config(config));
}

template <class C>
std::uint64_t hash_config(const C& config) {
  return hash_text(to_yaml(config));
}

template <class C>
std::vector<std::string> diff_configs(const C& old_config, const C& new_config,
                                      const std::vector<std::string>& ignore = {}) {
  return diff_yaml(to_yaml(old_config), to_yaml(new_config), ignore);
}

// Returns the reference of all keys in Markdown. Defaults are taken from C{}.
template <class C>
std::string describe_config() {
  C config{};
  return config::describe(bind_config(config));
}

// --- binding a C++ value to a Node ---

namespace config {

template <class T>
inline constexpr bool is_vector = false;
template <class T>
inline constexpr bool is_vector<std::vector<T>> = true;
template <class T>
inline constexpr bool is_optional = false;
template <class T>
inline constexpr bool is_optional<std::optional<T>> = true;

struct NoChoices {};

void add_word(Node& integer, const Word& word);
void add_word(Node& number, const ByTokens& schedule);
Value as_value(const Node& number, double value);  // returns an integer or a double, whichever `number` holds
template <class Rule>
void add_word(Node&, const Rule&) {}
inline void add_page(std::string& page, const DocsPage& rule) { page = rule.link; }
template <class Rule>
void add_page(std::string&, const Rule&) {}

std::string integer_out_of_range(std::int64_t min, std::uint64_t max);

template <class T>
Node bind_plain(T& value, Kind kind) {
  Node n;
  n.kind = kind;
  n.get = [&value]() -> Value { return value; };
  n.set = [&value](const Value& v) { return value = std::get<T>(v), std::string(); };
  return n;
}

inline Node bind_number(double& value) {
  Node n = bind_plain(value, Kind::number);
  n.type_min = std::numeric_limits<double>::lowest();
  n.type_max = std::numeric_limits<double>::max();
  return n;
}

template <std::integral T>
Node bind_integer(T& value) {
  Node n;
  n.kind = Kind::integer;
  n.type_min = std::numeric_limits<T>::min();
  n.type_max = std::numeric_limits<T>::max();
  n.get = [&value]() -> Value { return static_cast<std::int64_t>(value); };
  n.set = [&value](const Value& v) {
    const std::int64_t i = std::get<std::int64_t>(v);
    if (!std::in_range<T>(i)) {
      constexpr auto max = static_cast<std::uint64_t>(std::numeric_limits<T>::max());
      return integer_out_of_range(std::numeric_limits<T>::min(), std::min<std::uint64_t>(max, kMaxInteger));
    }
    value = static_cast<T>(i);
    return std::string();
  };
  return n;
}

template <class E>
Node bind_choice(E& value, const Choices<E>& choices) {
  Node n;
  n.kind = Kind::choice;
  for (const auto& [name, e] : choices.names) n.choices.push_back(name);
  n.get = [&value, names = choices.names]() -> Value {
    for (const auto& [name, e] : names) {
      if (e == value) return name;
    }
    if constexpr (std::is_enum_v<E>)
      fail("a config enum holds ", static_cast<std::int64_t>(value), ", which is not one of its choices");
    else
      fail("a config choice holds ", value, ", which is not one of its choices");
  };
  n.set = [&value, names = choices.names](const Value& v) {
    for (const auto& [name, e] : names) {
      if (name == std::get<std::string>(v)) value = e;
    }
    return std::string();
  };
  return n;
}

template <class T, class Names>
Node bind(T& value, const Names& names);

template <class T, class Names>
Node bind_optional(std::optional<T>& value, const Names& names) {
  auto inner = std::make_shared<T>();
  Node n = bind(*inner, names);
  n.optional = true;
  n.get = [&value, inner, get = n.get]() -> Value {
    if (!value) return std::monostate();
    *inner = *value;
    return get();
  };
  n.set = [&value, inner, set = n.set](const Value& v) {
    if (std::holds_alternative<std::monostate>(v)) return value.reset(), std::string();
    std::string wrong = set(v);
    if (wrong.empty()) value = *inner;
    return wrong;
  };
  return n;
}

template <class T, class Names>
Node bind_list(std::vector<T>& list, const Names& names) {
  static_assert(!std::is_same_v<T, bool> && !is_optional<T>, "no lists of bool or of optional");
  Node n;
  n.kind = Kind::list;
  n.size = [&list] { return list.size(); };
  n.reset = [&list](std::size_t size) { list.assign(size, T{}); };
  n.element = [&list, names](std::size_t i) { return bind(list[i], names); };
  n.prototype = [names] {
    auto element = std::make_shared<T>();
    Node p = bind(*element, names);
    p.reset = [element](std::size_t) {};  // keeps the element alive as long as its view
    return p;
  };
  return n;
}

template <HasFields C>
Node bind_section(C& section) {
  Node n;
  Fields f;
  section.fields(f);
  n.fields = f.take();
  if constexpr (requires(const C& c, std::vector<SettingProblem>& errors) { c.validate(errors); }) {
    n.validate = [&section](std::vector<SettingProblem>& errors) { std::as_const(section).validate(errors); };
  }
  return n;
}

template <class T, class Names>
Node bind(T& value, const Names& names) {
  if constexpr (std::is_same_v<T, bool>) {
    return bind_plain(value, Kind::boolean);
  } else if constexpr (std::integral<T>) {
    return bind_integer(value);
  } else if constexpr (std::is_same_v<T, double>) {
    return bind_number(value);
  } else if constexpr (std::is_same_v<T, std::string> && std::is_same_v<Names, Choices<T>>) {
    return bind_choice(value, names);  // the names are known only at run time
  } else if constexpr (std::is_same_v<T, std::string>) {
    return bind_plain(value, Kind::text);
  } else if constexpr (std::is_enum_v<T>) {
    static_assert(std::is_same_v<Names, Choices<T>>, "an enum field needs choices<E>(...)");
    return bind_choice(value, names);
  } else if constexpr (is_optional<T>) {
    return bind_optional(value, names);
  } else if constexpr (is_vector<T>) {
    return bind_list(value, names);
  } else {
    static_assert(HasFields<T>, "this type cannot be a config field: see the list at the top of core/fields.h");
    return bind_section(value);
  }
}

inline void add_rule(std::vector<Check>& checks, NoChoices&, const Check& check) { checks.push_back(check); }
template <class E>
void add_rule(std::vector<Check>& checks, Choices<E>&, const Check& check) {
  checks.push_back(check);
}
template <class Names>
void add_rule(std::vector<Check>&, Names&, RankLocal) {}
template <class Names>
void add_rule(std::vector<Check>&, Names&, const DocsPage&) {}
template <class Names>
void add_rule(std::vector<Check>&, Names&, const Word&) {}
template <class Names>
void add_rule(std::vector<Check>&, Names&, const ByTokens&) {}
template <class E>
void add_rule(std::vector<Check>&, Choices<E>& names, const Choices<E>& given) {
  names = given;
}

template <class... Rules>
struct NamesOf {
  using type = NoChoices;
};
template <class E, class... Rest>
struct NamesOf<Choices<E>, Rest...> {
  using type = Choices<E>;
};
template <class First, class... Rest>
struct NamesOf<First, Rest...> : NamesOf<Rest...> {};

}  // namespace config

template <class T, class... Rules>
void Fields::operator()(const char* name, T& value, const std::string& text, const Rules&... rules) {
  typename config::NamesOf<Rules...>::type names;
  config::Field field{name, text, {}, {}, (std::is_same_v<Rules, RankLocal> || ...)};
  (config::add_rule(field.checks, names, rules), ...);
  field.node = config::bind(value, names);
  (config::add_word(field.node, rules), ...);
  (config::add_page(field.page, rules), ...);
  config::add_field(fields_, std::move(field));
}

template <class C>
config::Node bind_config(C& config, const config::Synonyms* synonyms) {
  config::Node root = config::bind_section(config);
  root.synonyms = synonyms;
  return root;
}

}  // namespace ring
