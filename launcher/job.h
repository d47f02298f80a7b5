#pragma once
// What all agents of a job have in common, and the keys that follow from it. Nobody sends them.

#include <string>

#include "job/secret.h"

namespace ring {

struct Job {
  std::string id;      // --rdzv-id
  std::string secret;  // of this job alone, or of all jobs of its owner

  std::string agents_cookie() const { return hmac(secret, "agents of " + id); }
  // The key of one attempt's workers. `leader`: the agent of node 0, another one in each start of the job.
  std::string workers_cookie(const std::string& leader, int attempt) const {
    return hmac(secret, "workers of " + id + " under " + leader + ", attempt " + std::to_string(attempt));
  }
};

}  // namespace ring
