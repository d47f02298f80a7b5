#include "launcher/restart_budget.h"

#include "core/check.h"

namespace ring {

namespace {
constexpr int kMaxFruitless = 3, kMaxAlike = 3;
constexpr int kMaxSmaller = 64;  // maximum consecutive restarts, each with less memory, without progress in steps
}  // namespace

std::string RestartBudget::request_restart(std::int64_t step, bool less_memory) {
  alike_ = step == last_ ? alike_ + 1 : 1;
  last_ = step;
  if (step > farthest_) {
    farthest_ = step;
    used_ = fruitless_ = smaller_ = 0;
  } else {
    ++fruitless_;
  }
  if (max_ == 0) return "restarts are off (--max-restarts 0)";
  if (less_memory && ++smaller_ <= kMaxSmaller) return used_ = fruitless_ = alike_ = 0, "";
  if (alike_ >= kMaxAlike)
    return str("it failed ", alike_, " times in a row ",
               step > 0 ? str("after step ", step)
               : farthest_ > 0
                   ? str("before its steps continued, although an earlier attempt had reached step ", farthest_)
                   : "before its first step",
               ": a restart would not fix it");
  if (fruitless_ >= kMaxFruitless) return str(fruitless_, " attempts in a row got no further than step ", farthest_);
  if (used_ >= max_)
    return str("it was restarted ", used_, used_ == 1 ? " time" : " times", " without progress (--max-restarts)");
  ++used_;
  return "";
}

}  // namespace ring
