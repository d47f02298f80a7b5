#pragma once
// `launch --dashboard`: serves the agent's view of the job, and the run's records, to browsers and Prometheus.

#include <memory>
#include <string>
#include <vector>

#include "cli/command.h"
#include "job/http_server.h"
#include "job/job_board.h"

namespace ring {

class Dashboard {
 public:
  // run: directory of the run, which need not exist yet; empty if the command trains no run. Logs the dashboard's
  // address. Serves until it is destroyed.
  Dashboard(HttpOptions, const std::string& run, const JobBoard&);
  ~Dashboard();
  const Endpoint& endpoint() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Returns the directory of the run that a worker's command trains, parsed with the program `app`; empty if the command
// trains none or if its settings are wrong, which the workers report.
std::string run_directory_of(Command app, const std::vector<std::string>& command);

}  // namespace ring
