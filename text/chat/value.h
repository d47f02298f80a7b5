#pragma once
// Values in chat template expressions: Python's values, as far as templates use them. Immutable except for namespaces,
// cheap to copy, and bounded in depth and size.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "text/chat/budget.h"

namespace ring::chat {

struct Node;
class Value;
using Member = std::pair<std::string, Value>;

// An undefined name or member. It prints as "" and is false; reading a member of it is an error.
struct Undefined {
  std::string name;
};
struct None {};
// The size of a list or an object with its contents. A value that occurs several times is counted each time.
struct Extent {
  std::size_t depth = 1;  // 1 + depth of the deepest item
  std::size_t bytes = 0;
};
struct List {
  std::vector<Value> items;
  Extent extent;
};
struct Dict {
  std::vector<Member> members;  // in insertion order
  Extent extent;
  const Value* find(std::string_view name) const;
};
struct Namespace {  // object whose members {% set ns.name = .. %} modifies
  std::vector<Member> members;
};
struct Callable {
  std::string_view name;        // points into the template's syntax tree
  const Node* macro = nullptr;  // null for a built-in function
};

class Value {
 public:
  using Data =
      std::variant<Undefined, None, bool, std::int64_t, double, std::shared_ptr<const std::string>,
                   std::shared_ptr<const List>, std::shared_ptr<const Dict>, std::shared_ptr<Namespace>, Callable>;
  Value() = default;  // undefined
  Value(None) : data_(None{}) {}
  Value(bool b) : data_(b) {}
  Value(std::int64_t i) : data_(i) {}
  Value(double d) : data_(d) {}
  Value(std::string s) : data_(std::make_shared<const std::string>(std::move(s))) {}
  Value(Undefined u) : data_(std::move(u)) {}
  Value(Callable c) : data_(std::move(c)) {}
  Value(std::shared_ptr<Namespace> n) : data_(std::move(n)) {}
  // Makes a list. Throws Error if it is too deep or too large, or contains a namespace.
  static Value list(std::vector<Value> items);
  // Makes an object; throws the errors of list(). If a name occurs twice, the last value is used, at the first
  // position.
  static Value dict(std::vector<Member> members);

  template <class T>
  bool is() const {
    return std::holds_alternative<T>(data_);
  }
  bool is_text() const { return is<std::shared_ptr<const std::string>>(); }
  bool is_list() const { return is<std::shared_ptr<const List>>(); }
  bool is_dict() const { return is<std::shared_ptr<const Dict>>(); }
  bool is_number() const { return is<std::int64_t>() || is<double>(); }

  template <class T>
  const T* get() const {  // null if the value has a different type
    return std::get_if<T>(&data_);
  }
  // Throws Error if the value has a different type.
  const std::string& text() const;
  const List& items() const;
  const Dict& members() const;
  std::int64_t integer() const;
  double number() const;

  bool is_truthy() const;
  std::size_t bytes() const;      // size with contents; see Extent
  std::size_t top_bytes() const;  // size without the contents of items; 0 except for strings, lists and objects
  std::string kind() const;       // for error messages, e.g. "a string" or "undefined ('x')"

 private:
  Data data_;
};

// These functions charge the budget for all bytes that they read or create, and throw Error if a limit is exceeded.

// Returns `v` as {{ .. }} and Python's str() write it. Throws Error if it contains a function or a namespace.
std::string print(const Value& v, Budget&);
// Throws Error if `v` is none: a template would write it as "None", which training text must not contain.
void reject_none(const Value& v);
// Returns `v` as Python's json.dumps(ensure_ascii=False) writes it, on one line if indent < 0. Throws Error if it
// contains a function, a namespace or an undefined value.
std::string json_text(const Value& v, int indent, Budget&);
bool equal(const Value&, const Value&, Budget&);

// Converts JSON. Throws Error if the value is too deep or too large, or contains a number that is too large.
Value from_json(const nlohmann::ordered_json&);

}  // namespace ring::chat
