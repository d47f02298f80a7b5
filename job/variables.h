#pragma once
// Reads environment variables, with errors that name the variable.

#include <charconv>
#include <map>
#include <string>
#include <utility>

#include "core/check.h"
#include "core/yaml.h"

namespace ring {

using Environment = std::map<std::string, std::string>;

// Names of the variables in which a launcher passes the ranks. local_world is null if there is no such variable.
struct RankNames {
  const char *rank, *world, *local_rank, *local_world;
};
inline constexpr RankNames kOpenMpi{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                                    "OMPI_COMM_WORLD_LOCAL_SIZE"};
inline constexpr RankNames kHydra{"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"};  // MPICH, Intel MPI

inline void check_below(const char* low_name, int low, const char* high_name, int high) {
  if (low >= high)
    fail("environment: ", low_name, "=", low, " contradicts ", high_name, "=", high,
         ": the first must be below the second");
}

// Read access to variables, with errors that say which variable is wrong and which launcher needs it.
class Variables {
 public:
  explicit Variables(const Environment& env) : env_(env) {}

  bool has(const std::string& name) const { return find(name) != nullptr; }
  std::string text(const std::string& name) const {
    const std::string* v = find(name);
    return v ? *v : "";
  }
  int number(const std::string& name) const {
    const std::string* v = find(name);
    if (!v) fail("environment: ", name, " is not set, but ", context_, " needs it");
    int n = 0;
    const auto [end, error] = std::from_chars(v->data(), v->data() + v->size(), n);
    if (error != std::errc{} || end != v->data() + v->size() || n < 0)
      fail("environment: ", name, "='", shown(*v), "' is not a whole number from 0 to 2147483647");
    return n;
  }
  int number(const std::string& name, int min, int max, const char* unit) const {
    const int n = number(name);
    if (n < min || n > max) fail("environment: ", name, "=", n, ": expected ", min, " to ", max, " ", unit);
    return n;
  }
  int number_or(const std::string& name, int otherwise) const { return has(name) ? number(name) : otherwise; }
  void set_context(std::string context) { context_ = std::move(context); }

 private:
  // An empty variable counts as unset, as in shells and schedulers.
  const std::string* find(const std::string& name) const {
    const auto it = env_.find(name);
    return it == env_.end() || it->second.empty() ? nullptr : &it->second;
  }

  const Environment& env_;
  std::string context_;
};

}  // namespace ring
