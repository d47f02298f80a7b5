#pragma once
// Work that rank 0 does for all ranks, such as reading a directory that they share.

#include <cstring>
#include <exception>
#include <string>
#include <type_traits>

#include "comm/host.h"
#include "core/check.h"

namespace ring {

// Calls act() on rank 0 of `all` and returns its result, a string or a trivially copyable value, on all ranks. If act()
// throws, rank 0 rethrows the exception, and the other ranks throw Error with its text. All ranks call it in the same
// order.
template <class Act>
std::invoke_result_t<Act> broadcast_from_rank0(Communicator& all, const Act& act) {
  using Result = std::invoke_result_t<Act>;
  constexpr bool kText = std::is_same_v<Result, std::string>;
  static_assert(kText || std::is_trivially_copyable_v<Result>);
  Result result{};
  std::exception_ptr thrown;
  std::string message;  // '+' and the result, or '-' and the text of the exception
  if (all.rank() == 0) try {
      result = act();
      if constexpr (kText)
        message = "+" + result;
      else
        message.assign(1, '+').append(reinterpret_cast<const char*>(&result), sizeof(result));
    } catch (const std::exception& e) {
      thrown = std::current_exception();
      message = str("-", e.what());
    }
  message = gather_host(all, message)[0];
  if (thrown) std::rethrow_exception(thrown);
  if (message.starts_with('-')) fail(message.substr(1));
  if constexpr (kText)
    result = message.substr(1);
  else
    std::memcpy(&result, message.data() + 1, sizeof(result));
  return result;
}

}  // namespace ring
