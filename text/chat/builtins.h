#pragma once
// The filters, tests, methods and functions that chat templates call.

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/chat/value.h"

namespace ring::chat {

// The arguments of a call. find() and need() mark an argument as used; reject_unused() throws if one is left.
class Arguments {
 public:
  // placed: the positional arguments. Charges the budget for all arguments.
  Arguments(std::vector<Value> placed, std::vector<Member> named, Budget&);
  // Returns the argument at position `place`; if there is none, the argument named `name`; if there is none, null.
  const Value* find(std::size_t place, std::string_view name);
  const Value* find_named(std::string_view name) { return find(size(), name); }  // null if there is none
  const Value& need(std::size_t place, std::string_view name);                   // throws Error if there is none
  // Throws Error, with the kind and name of the called function, if an argument was not used.
  void reject_unused(std::string_view kind, std::string_view name) const;
  std::size_t size() const { return placed_.size(); }
  const std::vector<Member>& named() const { return named_; }
  Arguments without(std::size_t first) const;  // returns the arguments without the first `first` ones
  Budget& budget() const { return *budget_; }

 private:
  std::vector<Value> placed_;
  std::vector<Member> named_;
  Budget* budget_;
  std::size_t used_ = 0;
  std::vector<std::string_view> used_names_;
};

// These functions first charge the budget for the data that they read and return; functions with Arguments charge the
// budget of their Arguments. They throw Error if a limit is exceeded, an operand has the wrong type, or a called name
// does not exist.
Value call_filter(std::string_view name, const Value& of, Arguments&);
bool call_test(std::string_view name, const Value& of, Arguments&);
Value call_method(std::string_view name, const Value& of, Arguments&);
Value call_function(std::string_view name, Arguments&);
bool is_function(std::string_view name);

// Implements the filter `title`: a word begins after white space, a hyphen or an opening bracket, so "it's 3rd" becomes
// "It's 3rd". The method title() is Python's str.title(), which returns "It'S 3Rd".
Value capitalized_words(const Value& text, Arguments&);

template <class Table>
std::vector<std::string_view> names_of(const Table& table) {
  std::vector<std::string_view> names;
  for (const auto& [name, call] : table) names.push_back(name);
  return names;
}

// Returns `name` quoted for messages, shortened if long.
std::string shown_name(std::string_view name);

// Return the names of everything that can be called.
std::vector<std::string_view> filter_names();
std::vector<std::string_view> test_names();
std::vector<std::string_view> text_method_names();
std::vector<std::string_view> dict_method_names();
std::vector<std::string_view> function_names();

// Returns the items over which a loop or a filter iterates: items of a list, names of an object, characters of a
// string.
std::vector<Value> items_of(const Value&, Budget&);
Value member_of(const Value& of, std::string_view name, Budget&);  // returns undefined if there is no such member
Value item_of(const Value& of, const Value& index, Budget&);       // returns undefined if there is no such item
Value slice_of(const Value& of, const Value* begin, const Value* end, const Value* step, Budget&);
std::int64_t length_of(const Value&, Budget&);
bool contains(const Value& container, const Value& item, Budget&);
Value apply_binary(std::string_view symbol, const Value& left, const Value& right, Budget&);
bool compare(std::string_view symbol, const Value& left, const Value& right, Budget&);

}  // namespace ring::chat
