#pragma once
// The filters, tests, methods and functions that chat templates call.

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/chat/value.h"

namespace ring::chat {

// What a call passes. Who asks for an argument has used it; what nobody asked for is refused by done().
class Arguments {
 public:
  Arguments(std::vector<Value> placed, std::vector<Member> named)
      : placed_(std::move(placed)), named_(std::move(named)) {}
  // The argument at `place`, or of that name; null: it is not there.
  const Value* find(std::size_t place, std::string_view name);
  const Value& need(std::size_t place, std::string_view name);
  void done(std::string_view who) const;  // Error: some were not asked for
  std::size_t size() const { return placed_.size(); }
  const std::vector<Member>& named() const { return named_; }
  Arguments without(std::size_t first) const;  // those from there on

 private:
  std::vector<Value> placed_;
  std::vector<Member> named_;
  std::size_t used_ = 0;
  std::vector<std::string_view> used_names_;
};

// Each: Error, where there is none of that name, or an argument does not suit.
Value call_filter(const std::string& name, const Value& of, Arguments& a);
bool call_test(const std::string& name, const Value& of, Arguments& a);
Value call_method(const std::string& name, const Value& of, Arguments& a);
Value call_function(const std::string& name, Arguments& a);
bool is_function(std::string_view name);

// The items that a loop or a filter takes one by one: of a list, the names of an object, the characters of a text.
std::vector<Value> items_of(const Value&);
Value member_of(const Value& of, const std::string& name);  // undefined where it has none
Value item_of(const Value& of, const Value& index);         // undefined where it has none
Value slice_of(const Value& of, const Value* begin, const Value* end, const Value* step);
std::int64_t length_of(const Value&);
bool contains(const Value& all, const Value& one);
Value binary(const std::string& symbol, const Value& a, const Value& b);
bool compare(const std::string& symbol, const Value& a, const Value& b);

}  // namespace ring::chat
