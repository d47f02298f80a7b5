#pragma once
// Name and secret that all agents of a job share, and the keys derived from them. Neither the secret nor the keys are
// sent.

#include <string>

#include "job/secret.h"

namespace ring {

struct Job {
  std::string id;      // value of --rdzv-id
  std::string secret;  // secret of this job, or of all jobs of its owner

  std::string agents_cookie() const { return hmac(secret, "agents of " + id); }
  // Returns the key for the workers of one attempt. `leader`: the agent on node 0, which has a new id in each launch of
  // the job.
  std::string workers_cookie(const std::string& leader, int attempt) const {
    return hmac(secret, "workers of " + id + " under " + leader + ", attempt " + std::to_string(attempt));
  }
};

}  // namespace ring
