// cli/science_fit.h -- a family of runs with the laws that were fitted to it, as text and as a part of a page.
//
// Depends on: science, observe.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "trireme/science/scaling_fit.h"

namespace trireme::cli {

struct FamilyFolders {
  std::vector<std::string> runs, held_out;
  int bootstrap = 200;
  bool without_embeddings = false;  ///< count parameters as Kaplan does
};

struct FittedFamily {
  std::vector<science::ScalingRun> runs, held_out;
  science::ParametricFit fit;
  science::ParametricIntervals intervals;
  science::IsoFlopFit iso_flop;
  science::EnvelopeFit envelope;
  science::KaplanFit kaplan;
  /// With compute, the best size grows to this power.
  double exponent() const { return fit.law.beta / (fit.law.alpha + fit.law.beta); }
};
/// Reads the folders and fits all laws to the runs. ConfigError names a run that says nothing.
FittedFamily fit_family(const FamilyFolders& folders);

/// Kaplan's law of compute, L = (C_c / C)^alpha_C, of the lowest curve at each compute; nothing where they say nothing.
std::optional<science::PowerLaw> compute_form(const FittedFamily& family);

/// Each run beside what the law says of it.
std::string family_table(const FittedFamily& family);
/// The laws, line by line.
std::string family_text(const FittedFamily& family);
/// Curves, parabolas and best sizes: HTML.
std::string family_charts(const FittedFamily& family);

}  // namespace trireme::cli
