// Every slot that a contract header declares has a CPU kernel in this program, and every kernel fills a declared slot.
#include <gtest/gtest.h>

#include <map>
#include <regex>
#include <set>

#include "kernels/kernel.h"
#include "tests/meta/source_tree.h"
#include "tests/paths.h"

namespace ring::test {
namespace {

// Returns a map from the slot's name, as given to its constructor, to the header that declares it.
std::map<std::string, std::string> declared_slots(const std::vector<SourceFile>& files) {
  static const std::regex slot(R"re(\bKernel<\s*[\w:]+\s*>\s+\w+\s*[{(]\s*"([^"]+)")re");
  std::map<std::string, std::string> out;
  for (const SourceFile& file : files) {
    if (!file.path.starts_with("kernels/") || !file.path.ends_with(".h")) continue;
    for (std::sregex_iterator it(file.text.begin(), file.text.end(), slot), end; it != end; ++it) {
      EXPECT_FALSE(out.contains((*it)[1])) << (*it)[1] << " is declared in " << out[(*it)[1]] << " and " << file.path;
      out[(*it)[1]] = file.path;
    }
  }
  return out;
}

TEST(KernelSlots, DeclarationsAreFoundInText) {
  const SourceFile file{"kernels/x.h",
                        "inline constinit Kernel<Foo> foo_kernel{\"foo\"};\nKernel<ring::Bar> bar{\n  \"bar\"};"};
  EXPECT_EQ(declared_slots({file}),
            (std::map<std::string, std::string>{{"foo", "kernels/x.h"}, {"bar", "kernels/x.h"}}));
  EXPECT_TRUE(declared_slots({{"kernels/cpu/x.cpp", file.text}}).empty());
}

TEST(KernelSlots, EveryDeclaredSlotHasACpuKernel) {
  std::set<std::string> filled;
  for (const KernelInfo& k : kernel_registry())
    if (k.backend == Backend::cpu) filled.emplace(k.slot);
  const auto declared = declared_slots(source_tree(source_dir()));
  EXPECT_GE(declared.size(), 10u);
  for (const auto& [slot, header] : declared)
    EXPECT_TRUE(filled.contains(slot)) << "slot '" << slot << "' of " << header << " has no kernel in kernels/cpu/";
}

TEST(KernelSlots, EveryKernelFillsADeclaredSlotUnderItsOwnName) {
  const auto declared = declared_slots(source_tree(source_dir()));
  std::set<std::string> seen;
  for (const KernelInfo& k : kernel_registry()) {
    EXPECT_TRUE(declared.contains(std::string(k.slot)))
        << "kernel '" << k.candidate << "' fills an undeclared slot '" << k.slot << "'";
    const std::string name =
        std::string(to_string(k.backend)) + " " + std::string(k.slot) + " " + std::string(k.candidate);
    EXPECT_TRUE(seen.insert(name).second) << "two kernels are called " << name;
  }
}

}  // namespace
}  // namespace ring::test
