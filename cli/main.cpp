#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <iostream>

#include "checkpoint/writer_token.h"
#include "cli/command.h"
#include "cli/command_line.h"
#include "cli/version.h"
#include "comm/communicator.h"
#include "core/check.h"
#include "core/device_failure.h"
#include "core/exit_code.h"
#include "core/message.h"
#include "core/standard_streams.h"
#include "core/stop_signal.h"
#include "core/storage.h"
#include "core/unavailable.h"
#include "engine/memory_record.h"
#include "generated/build_info.h"
#include "job/crash_handler.h"
#include "launcher/output.h"

namespace {

std::string version_and_libraries() {
  std::string text = "ringmaster " + ring::version_text();
  for (const ring::build_info::Found& f : ring::build_info::kFound) text += ring::str("\n  ", f.name, ": ", f.status);
  return text;
}

int run(int argc, char** argv) {
  ring::Program program("ringmaster",
                        "Trains transformer language models: text -> tokens -> training -> checkpoints -> samples.");
  program.set_version(version_and_libraries());
  program.footer("Start with `make quickstart`, or see docs/ for each step.");
  ring::add_commands(program);
  try {
    ring::parse_arguments(program, {argv + 1, argv + argc});
  } catch (const ring::HelpAsked& e) {
    std::cout << e.text;
    return 0;
  } catch (const ring::UsageError& e) {
    std::cerr << ring::kErrorBegin << e.what() << "\nRun with --help for more information.\n";
    return ring::kExitUsage;
  }
  if (program.given_command() == program) {
    std::cerr << program.help();
    return ring::kExitUsage;
  }
  return 0;
}

const char* how_to_do_without(ring::Resource resource) {
  switch (resource) {
    case ring::Resource::gpu: return "Or use the CPU: run.device=cpu (eval, generate: --device cpu)";
    case ring::Resource::threads: return "Or use fewer threads: set run.threads, --threads or RINGMASTER_THREADS";
    case ring::Resource::recorded_lists: return "Or set train.cuda_graph: off";
  }
  return "";
}

int run_to_its_end(int argc, char** argv, ring::StandardOutput& output) {
  int code = 0;
  try {
    code = run(argc, argv);
  } catch (const ring::ExitCode& e) {
    code = e.code;
  }
  output.finish();
  return code;
}

int failed_with(const std::string& whole) {
  const std::string message = ring::bounded_message(whole);
  std::cerr << ring::kErrorBegin << message << "\n";
  ring::write_error_file(message);
  return ring::kExitError;
}

}  // namespace

int main(int argc, char** argv) {
  ring::open_standard_streams();
  std::signal(SIGCHLD, SIG_DFL);  // if the parent ignored SIGCHLD, the kernel would not report when children end
  ring::end_on_signals_as_process_1();
  ring::install_crash_handler();
  ring::StandardOutput output;
  try {
    return run_to_its_end(argc, argv, output);
  } catch (const ring::PeerLost& e) {  // the launcher looks for the process that caused it
    std::cerr << ring::kErrorBegin << ring::bounded_message(e.what()) << "\n";
    return ring::kExitPeerLost;
  } catch (const ring::WriterSuperseded& e) {
    std::cerr << ring::kErrorBegin << ring::bounded_message(e.what()) << "\n";
    return ring::kExitTakenOver;
  } catch (const ring::RestartWithLessMemory& e) {
    failed_with(e.what());
    return ring::kExitOutOfMemory;
  } catch (const ring::DeviceFailure& e) {
    failed_with(e.what());
    return ring::kExitDeviceFailure;
  } catch (const ring::OutOfMemory& e) {
    const char* advice =
        e.advice.empty() ? ". Use a smaller batch, a shorter context, or a device with more memory" : "";
    return failed_with(ring::str(e.what(), advice));
  } catch (const ring::Unavailable& e) {
    return failed_with(ring::str(e.what(), ". ", how_to_do_without(e.resource)));
  } catch (const std::filesystem::filesystem_error& e) {
    return failed_with(ring::str(e.path1().string(), ": ", e.code().message()));
  } catch (const std::exception& e) {
    return failed_with(e.what());
  }
}
