#include "cli/command.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <concepts>

#include "core/byte_size.h"
#include "core/fields.h"
#include "core/fields_parse.h"
#include "core/joined.h"

namespace ring {
namespace {

using Text = const std::string&;

struct NothingIsRun {};

// Parses text into `value`. Returns the problem; "" if there is none.
std::string parse_number(const std::string& text, bool whole, const Check& range, config::Value& value) {
  config::Node node;
  node.kind = whole ? config::Kind::integer : config::Kind::number;
  YamlNode scalar;
  scalar.type = YamlNode::Type::scalar;
  scalar.text = text;
  const std::string wrong = config::parse_value(node, scalar, value);
  if (!wrong.empty() || range.passes(value)) return wrong;
  return str("must be ", range.text, ", is ", shown(text));
}

// Rewrites each accepted value as digits, which CLI11 then parses exactly.
CLI::Validator number_in(bool whole, long double min, long double max) {
  const Check range = in_range(min, max);
  const auto read = [=](std::string& text) {
    config::Value value;
    std::string wrong = parse_number(text, whole, range, value);
    if (wrong.empty()) text = config::to_text(value);
    return wrong;
  };
  return {read, range.text};
}

// Suggests a unit for a small number without one: nobody has 80 bytes of memory.
std::string unit_hint(const std::string& text, const Check& range) {
  std::int64_t bytes = 0;
  if (text.find_first_not_of("0123456789.") != std::string::npos) return "";
  for (const char* unit : {"GB", "MB"})
    if (parse_bytes(text + unit, bytes).empty() && range.passes(bytes)) return str("; did you mean ", text, unit, "?");
  return "";
}

CLI::Validator bytes_in(std::uint64_t min, std::uint64_t max) {
  const Check range = bytes_in_range(static_cast<long double>(min), static_cast<long double>(max));
  const auto read = [=](std::string& text) -> std::string {
    std::int64_t bytes = 0;
    if (const std::string wrong = parse_bytes(text, bytes); !wrong.empty()) return wrong;
    if (!range.passes(bytes)) return str("must be ", range.text, ", is ", shown(text), unit_hint(text, range));
    text = std::to_string(bytes);
    return "";
  };
  return {read, range.text};
}

template <class T>
struct ElementOf {
  using type = T;
};
template <class T>
struct ElementOf<std::vector<T>> {
  using type = T;
};

template <class Handle, class T>
std::vector<Handle> handles(const std::vector<T*>& all) {
  std::vector<Handle> out;
  for (T* one : all) out.push_back(Handle(one));
  return out;
}

}  // namespace

Option Option::required() const { return Option(option_->required()); }
Option Option::type_name(const std::string& text) const { return Option(option_->type_name(text)); }
Option Option::group(const std::string& title) const { return Option(option_->group(title)); }
Option Option::show_default() const { return Option(option_->capture_default_str()); }
Option Option::show_default(const std::string& text) const { return Option(option_->default_str(text)); }
Option Option::one_of(const std::vector<std::string>& choices) const {
  return Option(option_->check(CLI::IsMember(choices)));
}
Option Option::check(const std::function<void(const std::string&)>& check) const {
  return Option(option_->each(check));
}
Option Option::delimiter(char between) const { return Option(option_->delimiter(between)); }
Option Option::takes(int min, int max) const { return Option(option_->expected(min, max)); }
Option Option::takes_at_least(int min) const { return Option(option_->expected(-min)); }
Option Option::takes_one_word() const { return Option(option_->allow_extra_args(false)); }
Option Option::envname(const std::string& variable) const { return Option(option_->envname(variable)); }
Option Option::needs(const std::string& other) const { return Option(option_->needs(other)); }
Option Option::excludes(std::initializer_list<const char*> others) const {
  for (const char* other : others) option_->excludes(other);
  return *this;
}

std::string Option::name() const { return option_->get_name(); }
std::vector<std::string> Option::names() const {
  std::vector<std::string> names;
  for (const std::string& n : option_->get_lnames()) names.push_back("--" + n);
  for (const std::string& n : option_->get_snames()) names.push_back("-" + n);
  return names;
}
std::string Option::description() const { return option_->get_description(); }
std::string Option::type_text() const { return option_->get_type_name(); }
std::string Option::default_text() const { return option_->get_default_str(); }
bool Option::is_positional() const { return option_->get_positional(); }
bool Option::is_required() const { return option_->get_required(); }
std::size_t Option::min_values() const {
  return static_cast<std::size_t>(std::max(0, option_->get_items_expected_min()));
}
std::size_t Option::max_values() const { return static_cast<std::size_t>(option_->get_items_expected_max()); }
bool Option::given() const { return option_->count() > 0; }
const std::vector<std::string>& Option::values() const { return option_->results(); }

Command Command::add_subcommand(const std::string& name, const std::string& text) const {
  return Command(app_->add_subcommand(name, text));
}
void Command::require_subcommand() const { app_->require_subcommand(1); }
void Command::footer(const std::string& text) const { app_->footer(text); }
void Command::set_callback(const std::function<void()>& run) const { app_->callback(run); }

Option Command::add_flag(const std::string& names, bool& value, const std::string& text) const {
  return Option(app_->add_flag(names, value, text));
}
Option Command::add_option(const std::string& names, std::string& value, const std::string& text) const {
  return Option(app_->add_option(names, value, text));
}
Option Command::add_option(const std::string& names, std::vector<std::string>& values, const std::string& text) const {
  return Option(app_->add_option(names, values, text));
}
Option Command::add_option(const std::string& names, const std::function<void(const std::string&)>& on_value,
                           const std::string& text) const {
  return Option(app_->add_option_function<std::string>(names, on_value, text));
}

template <class T>
Option Command::add_number(const std::string& names, T& value, const std::string& text, long double min,
                           long double max) const {
  using Number = typename ElementOf<T>::type;
  using Limits = std::numeric_limits<Number>;
  RING_CHECK(min >= Limits::lowest() && max <= Limits::max(), names, ": its range does not fit into its type");
  CLI::Option* option = app_->add_option(names, value, text);
  option->transform(number_in(std::integral<Number>, min, max));
  if constexpr (!std::is_same_v<T, Number>) option->delimiter(',');
  return Option(option);
}
template Option Command::add_number(Text, int&, Text, long double, long double) const;
template Option Command::add_number(Text, std::int64_t&, Text, long double, long double) const;
template Option Command::add_number(Text, std::uint64_t&, Text, long double, long double) const;
template Option Command::add_number(Text, double&, Text, long double, long double) const;
template Option Command::add_number(Text, std::vector<int>&, Text, long double, long double) const;
template Option Command::add_number(Text, std::vector<std::int64_t>&, Text, long double, long double) const;
template Option Command::add_number(Text, std::vector<double>&, Text, long double, long double) const;

Option Command::add_bytes(const std::string& names, std::uint64_t& value, const std::string& text, std::uint64_t min,
                          std::uint64_t max) const {
  return Option(app_->add_option(names, value, text)->transform(bytes_in(min, max)));
}

std::string Command::name() const { return app_->get_name(); }
std::string Command::description() const { return app_->get_description(); }
std::string Command::footer() const { return app_->get_footer(); }
Command Command::parent() const { return Command(app_->get_parent()); }
std::vector<std::string> Command::command_names() const {
  std::vector<std::string> names;
  for (const CLI::App* sub : app_->get_subcommands({})) names.push_back(sub->get_name());
  return names;
}
Command Command::find_command(const std::string& name) const {
  const auto named = app_->get_subcommands([&](CLI::App* sub) { return sub->get_name() == name; });
  return named.empty() ? Command() : Command(named.front());
}
std::vector<Option> Command::options() const { return handles<Option>(app_->get_options({})); }
std::vector<Option> Command::named_options() const {
  return handles<Option>(app_->get_options([](CLI::Option* o) { return !o->get_positional(); }));
}
std::vector<Option> Command::positionals() const {
  return handles<Option>(app_->get_options([](CLI::Option* o) { return o->get_positional(); }));
}
Option Command::find_option(const std::string& name) const { return Option(app_->get_option_no_throw(name)); }
Option Command::option_before_values(const std::string& word) const {
  if (!word.starts_with('-') || word.find('=') != std::string::npos) return {};
  const Option option = find_option(word);
  return option && option.min_values() > 0 ? option : Option();
}
Command Command::given_command() const {
  const auto given = app_->get_subcommands();
  return given.empty() ? *this : Command(given.front()).given_command();
}

Program::Program(const std::string& name, const std::string& text) : Command(new CLI::App(text, name)), owner_(app_) {
  app_->require_subcommand(0, 1);
}
void Program::set_version(const std::string& text) { app_->set_version_flag("--version", text); }
std::string Program::help() const { return app_->help(); }

void Program::parse(std::vector<std::string> arguments) {
  std::ranges::reverse(arguments);  // CLI11 expects them in reverse order
  try {
    app_->parse(std::move(arguments));
  } catch (const CLI::CallForHelp&) {
    throw HelpAsked{app_->help()};
  } catch (const CLI::CallForVersion& e) {
    throw HelpAsked{str(e.what(), "\n")};
  } catch (const CLI::ExtrasError&) {
    throw UnexpectedWords(joined(app_->remaining(true), " "));
  } catch (const CLI::RequiredError& e) {
    throw MissingOption(e.what());
  } catch (const CLI::ParseError& e) {
    throw UsageError(e.what());
  } catch (const NothingIsRun&) {
  }
}

// Makes parse() throw internally after parsing, before the callback of any command runs. The callbacks cannot be
// removed instead, since they own the variables that options fill.
void Program::disable_callbacks() {
  app_->parse_complete_callback([] { throw NothingIsRun(); });
}

}  // namespace ring
