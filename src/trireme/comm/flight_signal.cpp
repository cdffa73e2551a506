#include "trireme/comm/flight_signal.h"

#include <semaphore.h>

#include <cerrno>
#include <csignal>
#include <map>
#include <mutex>
#include <thread>

namespace trireme::comm {
namespace {

struct Listed {
  std::mutex mutex;
  std::map<const Recorder*, std::string> directories;
};

// Never destroyed: the thread that waits for signals outlives main().
Listed& listed() {
  static auto* all = new Listed;
  return *all;
}

sem_t signalled;

void on_signal(int) {
  const int error = errno;
  sem_post(&signalled);  // one of the few things a handler may do
  errno = error;
}

}  // namespace

FlightListing::FlightListing(const Recorder& recorder, std::string directory) : recorder_(recorder) {
  const std::lock_guard lock(listed().mutex);
  listed().directories[&recorder_] = std::move(directory);
}

FlightListing::~FlightListing() {
  const std::lock_guard lock(listed().mutex);
  listed().directories.erase(&recorder_);
}

void write_flights_on_signal() {
  static const bool once = [] {
    sem_init(&signalled, 0, 0);
    std::thread([] {
      while (true) {
        if (sem_wait(&signalled) != 0) continue;  // interrupted
        const std::lock_guard lock(listed().mutex);
        for (const auto& [recorder, directory] : listed().directories)
          recorder->dump(directory, "asked for by SIGUSR1");
      }
    }).detach();
    struct sigaction action = {};
    action.sa_handler = &on_signal;
    action.sa_flags = SA_RESTART;
    sigaction(SIGUSR1, &action, nullptr);
    return true;
  }();
  (void)once;
}

}  // namespace trireme::comm
