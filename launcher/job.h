#pragma once
// Name and secret that all agents of a job share, and the keys derived from them. None of them is sent.

#include <string>

#include "job/secret.h"

namespace ring {

struct Job {
  std::string id;      // value of --rdzv-id
  std::string secret;  // for this job only, or for all jobs of its owner

  std::string agents_cookie() const { return hmac(secret, "agents of " + id); }
  // Returns the key of one attempt's workers. `leader`: the agent of node 0, which has a new id in each launch of the
  // job.
  std::string workers_cookie(const std::string& leader, int attempt) const {
    return hmac(secret, "workers of " + id + " under " + leader + ", attempt " + std::to_string(attempt));
  }
};

}  // namespace ring
