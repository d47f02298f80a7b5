#pragma once
// The cuDNN library of this process, if there is one. It is loaded at first use and never linked, so the program also
// runs without it, with its own kernels.

#include <string>

namespace ring::cudnn {

// Returns the version in cuDNN's encoding (91900 is 9.19.0). Returns 0 and logs the reason once if cuDNN was not found,
// or if its version is refused (core/known_defects.h).
int version();
std::string library_text();  // "cuDNN 91900"; part of the keys under which choices of kernels are stored

// First version whose backward accepts a log-sum-exp with any strides. All usable versions write any strides.
inline constexpr int kStridedStatsInput = 92600;

}  // namespace ring::cudnn
