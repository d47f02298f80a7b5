#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <thread>

#include "cli/commands.h"
#include "cli/number_option.h"
#include "cli/watch_view.h"
#include "inspect/live_run.h"
#include "trainer/progress.h"
#include "trainer/run_directory.h"

namespace ring {
namespace {

struct Arguments {
  std::string run;
  double seconds = 2;
};

bool is_terminal() {
  const char* term = std::getenv("TERM");
  return isatty(STDOUT_FILENO) && term && std::string(term) != "dumb";
}

void draw(const ReportRun& run) {
  for (const std::string& line : watch_lines(run, static_cast<std::size_t>(terminal_columns())))
    std::cout << line << (is_terminal() ? "\x1b[K\n" : "\n");
  std::cout << std::flush;
}

// Over the last picture, until the run ends or the terminal goes away.
void watch(const Arguments& a) {
  LiveRun live(find_run(a.run).path());
  auto reading = live.look();
  draw(reading->run);
  while (is_terminal() && std::cout && reading->run.summary.status == kRunRunning) {
    std::this_thread::sleep_for(std::chrono::duration<double>(a.seconds));
    const std::size_t lines = watch_lines(reading->run, 80).size();
    reading = live.look();
    std::cout << "\x1b[" << lines << "A";
    draw(reading->run);
  }
}

}  // namespace

void add_watch_command(CLI::App& app) {
  CLI::App* c = app.add_subcommand("watch", "Follow a run in the terminal: losses, speed, memory, what is left");
  auto a = std::make_shared<Arguments>();
  c->add_option("run", a->run, "directory of a run")->required()->type_name("RUN");
  add_number(*c, "--interval", a->seconds, "Seconds between two pictures", 0.1, 3600)->capture_default_str();
  c->footer(
      "Ends with the run, or with Ctrl+C, which does nothing to the run. Where the output is no terminal it prints one "
      "picture.\nExample: ringmaster watch runs/quickstart");
  c->callback([a] { watch(*a); });
}

}  // namespace ring
