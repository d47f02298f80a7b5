#pragma once
// Scopes of a decoder's parts (core/scope.h) and of its blocks' sublayers.

#include "core/checked.h"
#include "core/scope.h"

namespace ring {
namespace scopes {
inline const ScopeKind embedding{"embedding"};
inline const ScopeKind block{"blocks"};
inline const ScopeKind final_norm{"final_norm"};
inline const ScopeKind loss_head{"loss_head"};
inline const ScopeKind attention{"attention"};  // sublayer of a block
inline const ScopeKind mlp{"mlp"};              // sublayer of a block
}  // namespace scopes

inline ScopeId block_scope(std::int64_t number, ScopeKind sublayer = {}) {
  return {scopes::block, narrow<int>(number), sublayer};
}

}  // namespace ring
