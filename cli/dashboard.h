#pragma once
// `launch --dashboard`: what the agent knows of the job, and what the run records, for browsers and Prometheus.

#include <memory>
#include <string>
#include <vector>

#include "cli/command.h"
#include "job/http_server.h"
#include "job/job_board.h"

namespace ring {

class Dashboard {
 public:
  // run: its directory, which may not be there yet; empty: the command has none. Says where it is.
  Dashboard(HttpOptions, const std::string& run, const JobBoard&);
  ~Dashboard();
  const Endpoint& endpoint() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// The directory of the run that a worker's command trains, as the program `app` reads it; empty: it trains none, or its
// settings are wrong, which the workers say.
std::string run_of_command(Command app, const std::vector<std::string>& command);

}  // namespace ring
