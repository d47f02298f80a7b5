#pragma once
// Visits all values of one type inside a struct, so that nobody has to list the struct's members by hand.

#include <cstddef>
#include <memory>
#include <ranges>
#include <type_traits>
#include <vector>

namespace ring {
namespace visit_all_detail {

// Converts to every type. An aggregate of n members can be initialized from n objects of this type, but not from n + 1.
struct Anything {
  template <class T>
  operator T() const;
};

template <class Struct, class... Members>
constexpr std::size_t count_members() {
  if constexpr (requires { Struct{Members{}..., Anything{}}; })
    return count_members<Struct, Members..., Anything>();
  else
    return sizeof...(Members);
}

// Calls f with references to all members of an aggregate, in declaration order.
template <class Struct, class Fn>
void with_members(Struct& s, const Fn& f) {
  constexpr std::size_t n = count_members<std::remove_const_t<Struct>>();
  static_assert(n <= 9 || n == 12 || n == 13 || n == 19 || n == 21,
                "no visited struct had this many members so far: add a line below and its number here");
  // The names skip the letters f, n and s, which are already names in this function.
  // clang-format off
  if constexpr (n == 0) { f(); }
  if constexpr (n == 1) { auto& [a] = s; f(a); }
  if constexpr (n == 2) { auto& [a, b] = s; f(a, b); }
  if constexpr (n == 3) { auto& [a, b, c] = s; f(a, b, c); }
  if constexpr (n == 4) { auto& [a, b, c, d] = s; f(a, b, c, d); }
  if constexpr (n == 5) { auto& [a, b, c, d, e] = s; f(a, b, c, d, e); }
  if constexpr (n == 6) { auto& [a, b, c, d, e, g] = s; f(a, b, c, d, e, g); }
  if constexpr (n == 7) { auto& [a, b, c, d, e, g, h] = s; f(a, b, c, d, e, g, h); }
  if constexpr (n == 8) { auto& [a, b, c, d, e, g, h, i] = s; f(a, b, c, d, e, g, h, i); }
  if constexpr (n == 9) { auto& [a, b, c, d, e, g, h, i, j] = s; f(a, b, c, d, e, g, h, i, j); }
  if constexpr (n == 12) { auto& [a, b, c, d, e, g, h, i, j, k, l, m] = s; f(a, b, c, d, e, g, h, i, j, k, l, m); }
  if constexpr (n == 13) { auto& [a, b, c, d, e, g, h, i, j, k, l, m, o] = s;
                           f(a, b, c, d, e, g, h, i, j, k, l, m, o); }
  if constexpr (n == 19) { auto& [a, b, c, d, e, g, h, i, j, k, l, m, o, p, q, r, t, u, v] = s;
                           f(a, b, c, d, e, g, h, i, j, k, l, m, o, p, q, r, t, u, v); }
  if constexpr (n == 21) { auto& [a, b, c, d, e, g, h, i, j, k, l, m, o, p, q, r, t, u, v, w, x] = s;
                           f(a, b, c, d, e, g, h, i, j, k, l, m, o, p, q, r, t, u, v, w, x); }
  // clang-format on
}

template <class T>
constexpr bool is_shared = false;
template <class T>
constexpr bool is_shared<std::shared_ptr<T>> = true;

}  // namespace visit_all_detail

// Calls f with a reference to each T in `object`, in declaration order: `object` itself, members of structs, and
// elements of vectors. Objects behind a shared_ptr are not visited. Other types that could contain a T do not compile.
template <class T, class Object, class Fn>
void visit_all(Object& object, const Fn& f) {
  using Plain = std::remove_const_t<Object>;
  if constexpr (std::is_same_v<Plain, T>)
    f(object);
  else if constexpr (std::ranges::range<Plain>)
    for (auto& element : object) visit_all<T>(element, f);
  else if constexpr (std::is_class_v<Plain> && std::is_aggregate_v<Plain>)
    visit_all_detail::with_members(object, [&](auto&... members) { (visit_all<T>(members, f), ...); });
  else
    static_assert(std::is_scalar_v<Plain> || visit_all_detail::is_shared<Plain>, "this type may hide what is visited");
}

// Returns copies of all Ts in `object`.
template <class T, class Object>
std::vector<T> list_all(const Object& object) {
  std::vector<T> all;
  visit_all<T>(object, [&](const T& t) { all.push_back(t); });
  return all;
}

}  // namespace ring
