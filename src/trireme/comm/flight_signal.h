// comm/flight_signal.h -- SIGUSR1 writes the flight recorders of this process's ranks while they run, or hang.
//
// A signal has no object to be delivered to, so here, and only here, is a list of all recorders of the process.
// Depends on: recorder.h.
#pragma once

#include <string>

#include "trireme/comm/recorder.h"

namespace trireme::comm {

/// A recorder as long as it can be asked for by the signal.
class FlightListing {
 public:
  FlightListing(const Recorder& recorder, std::string directory);
  ~FlightListing();
  FlightListing(const FlightListing&) = delete;
  FlightListing& operator=(const FlightListing&) = delete;

 private:
  const Recorder& recorder_;
};

/// From now on SIGUSR1 writes all listed recorders. A thread of its own does the writing, so it works whatever the
/// ranks are stuck in. Calling it again changes nothing.
void write_flights_on_signal();

}  // namespace trireme::comm
