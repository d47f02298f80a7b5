#include "core/scope.h"

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "core/checked.h"

namespace ring {
namespace {

const char* text_of(ScopeKind kind) {
  switch (kind) {
    case ScopeKind::none: return "other";
    case ScopeKind::parameters: return "parameters";
    case ScopeKind::optimizer_states: return "optimizer states";
    case ScopeKind::inputs: return "inputs";
    case ScopeKind::embedding: return "embedding";
    case ScopeKind::block: return "blocks";
    case ScopeKind::final_norm: return "final_norm";
    case ScopeKind::loss_head: return "loss_head";
    case ScopeKind::backward: return "backward";
    case ScopeKind::optimizer: return "optimizer";
  }
  fail("no scope has the number ", static_cast<int>(kind));
}

}  // namespace

ScopeId block_scope(std::int64_t number, Sublayer sublayer) {
  return {ScopeKind::block, narrow<int>(number), sublayer};
}

std::ostream& operator<<(std::ostream& out, ScopeKind kind) { return out << text_of(kind); }

std::ostream& operator<<(std::ostream& out, const ScopeId& id) {
  out << id.kind;
  if (id.kind == ScopeKind::block) out << '.' << id.block;
  if (id.sublayer != Sublayer::none) out << (id.sublayer == Sublayer::mlp ? ".mlp" : ".attention");
  return out;
}

void Scopes::after_backward(const ScopeId& id) {
  for (ScopeListener* listener : listeners_)
    if (listener) listener->after_backward(id);
}

ScopeSubscription::ScopeSubscription(std::shared_ptr<Scopes> scopes, ScopeListener& listener)
    : scopes_(std::move(scopes)), listener_(&listener) {
  scopes_->listeners_.push_back(listener_);
}

ScopeSubscription::~ScopeSubscription() {
  if (!listener_) return;
  std::vector<ScopeListener*>& all = scopes_->listeners_;
  const auto at = std::find(all.begin(), all.end(), listener_);
  if (scopes_->open_.empty())
    all.erase(at);
  else
    *at = nullptr;  // guards count places
}

ScopeSubscription& ScopeSubscription::operator=(ScopeSubscription&& other) noexcept {
  std::swap(scopes_, other.scopes_);
  std::swap(listener_, other.listener_);
  return *this;
}

ScopeGuard::ScopeGuard(Scopes& scopes, const ScopeId& id, ScopePass pass) : scopes_(scopes), id_(id), pass_(pass) {
  scopes_.open_.push_back(id_);
  try {
    for (; entered_ < scopes_.listeners_.size(); ++entered_)
      if (ScopeListener* listener = scopes_.listeners_[entered_]) listener->enter(id_, pass_);
  } catch (...) {
    leave();
    throw;
  }
}

void ScopeGuard::leave() noexcept {
  while (entered_ > 0)
    if (ScopeListener* listener = scopes_.listeners_[--entered_]) listener->leave(id_, pass_);
  scopes_.open_.pop_back();
  if (scopes_.open_.empty()) std::erase(scopes_.listeners_, nullptr);
}

}  // namespace ring
