#include "kernels/cpu/gemm.h"

#include <algorithm>
#include <cstdlib>
#include <string>

#include "core/yaml.h"

namespace ring::cpu {
namespace {

std::vector<GemmLibrary>& libraries() {
  static std::vector<GemmLibrary> list;
  return list;
}

const GemmLibrary& choose() {
  const char* wanted = std::getenv("RINGMASTER_GEMM");
  return wanted && *wanted ? find_gemm(wanted) : libraries().front();
}

void scale(const Gemm& g) {
  for (std::int64_t i = 0; i < g.m; ++i)
    for (std::int64_t j = 0; j < g.n; ++j) g.c[i * g.ldc + j] = g.beta == 0 ? 0 : g.beta * g.c[i * g.ldc + j];
}

}  // namespace

const std::vector<GemmLibrary>& gemm_libraries() { return libraries(); }

bool add_gemm_library(const GemmLibrary& library) {
  auto& list = libraries();
  list.insert(std::find_if(list.begin(), list.end(), [&](const auto& l) { return l.priority < library.priority; }),
              library);
  return true;
}

const GemmLibrary& find_gemm(std::string_view name) {
  std::string known;
  for (const GemmLibrary& l : libraries()) {
    if (l.name == name) return l;
    known += str(known.empty() ? "" : ", ", l.name);
  }
  fail("matrix library '", shown(std::string(name)), "' is not in this build, which has ", known,
       ". Set RINGMASTER_GEMM to one of these");
}

const GemmLibrary& chosen_gemm() {
  static const GemmLibrary& chosen = choose();
  return chosen;
}

void gemm(const Gemm& g) {
  if (g.m <= 0 || g.n <= 0) return;
  if (g.k <= 0) return scale(g);
  chosen_gemm().fn(g);
}

}  // namespace ring::cpu
