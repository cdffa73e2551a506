// dashboard/catalogue.h -- which runs and experiments lie below the folders that the page shows.
//
// Addresses name them by an id, a hash of where they are: what a client sends is looked up and never made a path of.
// Depends on: watched_run (RunPlace).
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "trireme/dashboard/watched_run.h"

namespace trireme::dashboard {

struct ExperimentPlace {
  std::string id, name;
  std::filesystem::path path;
};

struct Catalogue {
  std::vector<RunPlace> runs;
  std::vector<ExperimentPlace> experiments;
  bool cut = false;  ///< there were more runs than are shown
};

/// Twelve hexadecimal digits; the same for the same place.
std::string place_id(const std::filesystem::path& path);

/// Looks four folders deep. Links are not followed, and what is within a run is not looked at. At most `most` runs.
Catalogue find_runs(const std::vector<std::filesystem::path>& roots, std::size_t most = 2000);

}  // namespace trireme::dashboard
