#pragma once
// The cuDNN that this process found, if any. It is loaded when first asked for, never linked: the program starts
// without it, and then other kernels serve.

#include <string>

namespace ring::cudnn {

// Its version as cuDNN writes it (91900: 9.19.0), or 0: none, or none fit for use, which one log line says.
int version();
std::string library_text();  // "cuDNN 91900", for the keys of measured choices

// Versions from which on the log-sum-exp may have any strides where it is written (in every usable version) and read.
inline constexpr int kStridedStatsInput = 92600;

}  // namespace ring::cudnn
