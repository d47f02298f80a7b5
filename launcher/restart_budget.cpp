#include "launcher/restart_budget.h"

#include "core/check.h"

namespace ring {

namespace {
constexpr int kMaxFruitless = 3, kMaxAlike = 3;
constexpr int kMaxSmaller = 64;  // maximum consecutive restarts, each with less memory, without progress in steps
}  // namespace

std::string RestartBudget::request_restart(std::int64_t step, bool less_memory) {
  Counts& n = counts_;
  n.alike = step == n.last ? n.alike + 1 : 1;
  n.last = step;
  if (step > n.farthest) {
    n.farthest = step;
    n.used = n.fruitless = n.smaller = 0;
  } else {
    ++n.fruitless;
  }
  if (max_ == 0) return "restarts are off (--max-restarts 0)";
  if (less_memory && ++n.smaller <= kMaxSmaller) return n.used = n.fruitless = n.alike = 0, "";
  if (n.alike >= kMaxAlike)
    return str("it failed ", n.alike, " times in a row ",
               step > 0 ? str("after step ", step)
               : n.farthest > 0
                   ? str("before its steps continued, although an earlier attempt had reached step ", n.farthest)
                   : "before its first step",
               ": a restart would not fix it");
  if (n.fruitless >= kMaxFruitless) return str(n.fruitless, " attempts in a row got no further than step ", n.farthest);
  if (n.used >= max_)
    return str("it was restarted ", n.used, n.used == 1 ? " time" : " times", " without progress (--max-restarts)");
  ++n.used;
  return "";
}

}  // namespace ring
