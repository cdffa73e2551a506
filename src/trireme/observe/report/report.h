// observe/report/report.h -- runs as one page to look at: what they are, their curves, their recipes.
//
// Depends on: run_reader, chart, facts, page.
#pragma once

#include <span>
#include <string>

#include "trireme/observe/run_reader.h"

namespace trireme::observe {

/// A picture that somebody else has drawn of a run.
struct Figure {
  std::string title;
  std::string svg;  // well-formed: it goes into the page as it is
};

/// A self-contained HTML page of one run, or of several laid over each other. Read them leniently: their notes are
/// shown, and what a run lacks is left out. Figures stand below the charts.
std::string report_page(std::span<const RunFiles> runs, std::span<const Figure> figures = {});

}  // namespace trireme::observe
