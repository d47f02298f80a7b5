#pragma once
// The cuDNN library of this process, if there is one. It is loaded at first use and never linked, so the program also
// runs without it, with its own kernels.

#include <string>

namespace ring::cudnn {

// Returns the version as cuDNN writes it (91900 is 9.19.0); 0 if there is no cuDNN or none fit for use, which is logged
// once.
int version();
std::string library_text();  // "cuDNN 91900"; part of the keys of measured choices

// First version whose backward accepts a log-sum-exp with any strides. All usable versions write any strides.
inline constexpr int kStridedStatsInput = 92600;

}  // namespace ring::cudnn
