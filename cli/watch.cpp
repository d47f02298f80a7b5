#include <chrono>
#include <iostream>
#include <thread>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/watch_view.h"
#include "engine/run_directory.h"
#include "inspect/live_run.h"
#include "trainer/progress.h"

namespace ring {
namespace {

struct WatchArguments {
  std::string run;
  double seconds = 2;
};

// Draws a run and returns the number of lines. Erases each line before writing it, and leaves its last column free,
// because some terminals would erase the last character after a full line.
std::size_t draw(const ReportRun& run, bool terminal) {
  const std::vector<std::string> lines = watch_lines(run, static_cast<std::size_t>(terminal_columns()) - 1);
  for (const std::string& line : lines) std::cout << (terminal ? "\x1b[K" : "") << line << "\n";
  std::cout << std::flush;
  return lines.size();
}

// Redraws the picture until the run ends or the terminal closes.
void watch(const WatchArguments& a) {
  LiveRun live(find_run(a.run).path());
  const bool terminal = is_terminal();
  auto reading = live.read_if_changed();
  std::size_t lines = draw(reading->run, terminal);
  while (terminal && std::cout && reading->run.summary.status == kRunRunning) {
    std::this_thread::sleep_for(std::chrono::duration<double>(a.seconds));
    reading = live.read_if_changed();
    std::cout << "\x1b[" << lines << "A";
    lines = draw(reading->run, terminal);
  }
}

}  // namespace

void add_watch_command(Command app) {
  const Command c = app.add_subcommand("watch", "Follow a run in the terminal: losses, speed, memory, remaining time");
  WatchArguments& a = c.runs(watch);
  c.add_option("run", a.run, "directory of a run").required().type_name("RUN");
  c.add_number("--interval", a.seconds, "Seconds between updates", 0.1, 3600).show_default();
  c.footer(
      "Ends with the run, or on Ctrl+C, which does not affect the run. If the output is not a terminal, it prints the\n"
      "state once.\nExample: ringmaster watch runs/quickstart");
}

}  // namespace ring
