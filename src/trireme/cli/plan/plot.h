// cli/plan/plot.h -- a plot with linear or logarithmic axes as SVG, in the colours of report pages.
//
// Depends on: fmt.
#pragma once

#include <string>
#include <vector>

namespace trireme::cli {

struct PlotLine {
  std::string name;
  std::vector<std::pair<double, double>> points;
  int color = 0;  ///< of observe/report/page.h
  bool dashed = false;
};

struct PlotPoint {
  double x = 0, y = 0;
  std::string name;  ///< beside it; empty: only shown where one points
  std::string tip;   ///< shown where one points
  int color = 0;
};

struct Plot {
  std::string x_title, y_title;
  bool x_log = false, y_log = false;
  std::vector<PlotLine> lines;
  std::vector<PlotPoint> points;
};

/// An <svg> element. `alone`: as a file of its own, with the colours it needs.
std::string to_svg(const Plot& plot, bool alone = false);

}  // namespace trireme::cli
