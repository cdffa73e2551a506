// experiment/searches/makers.h -- the searches, one file each; the table of search.cpp lists them.
//
// Depends on: search.
#pragma once

#include <memory>

#include "trireme/experiment/search.h"

namespace trireme::experiment {

/// Draws of an invalid setting; after so many the trial counts as failed: a space may hold nothing valid.
inline constexpr int kMostDraws = 20;

std::unique_ptr<Search> make_grid(const SearchOptions& options);
std::unique_ptr<Search> make_random(const SearchOptions& options);
std::unique_ptr<Search> make_latin_hypercube(const SearchOptions& options);
std::unique_ptr<Search> make_successive_halving(const SearchOptions& options);
std::unique_ptr<Search> make_hyperband(const SearchOptions& options);
std::unique_ptr<Search> make_asha_promotion(const SearchOptions& options);
std::unique_ptr<Search> make_asha_stopping(const SearchOptions& options);
std::unique_ptr<Search> make_adaptive_asha(const SearchOptions& options);
std::unique_ptr<Search> make_pbt(const SearchOptions& options);
std::unique_ptr<Search> make_median_stopping(const SearchOptions& options);
std::unique_ptr<Search> make_tpe(const SearchOptions& options);

}  // namespace trireme::experiment
