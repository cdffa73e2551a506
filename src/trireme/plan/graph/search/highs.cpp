#include "trireme/plan/graph/search/highs.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "trireme/base/env.h"
#include "trireme/base/error.h"

namespace trireme::plan::graph {
namespace {

// From HiGHS's interfaces/highs_c_api.h; HighsInt is 32 bits in the published builds.
using HighsInt = std::int32_t;
constexpr HighsInt kRowWise = 2, kMinimize = 1, kContinuous = 0, kInteger = 1;
constexpr HighsInt kStatusError = -1;
constexpr HighsInt kOptimal = 7, kInfeasible = 8;

struct HighsFunctions {
  void* (*create)() = nullptr;
  void (*destroy)(void*) = nullptr;
  const char* (*version)() = nullptr;
  HighsInt (*set_bool)(void*, const char*, HighsInt) = nullptr;
  HighsInt (*set_int)(void*, const char*, HighsInt) = nullptr;
  HighsInt (*set_double)(void*, const char*, double) = nullptr;
  HighsInt (*pass_mip)(void*, HighsInt columns, HighsInt rows, HighsInt entries, HighsInt format, HighsInt sense,
                       double offset, const double* cost, const double* column_lower, const double* column_upper,
                       const double* row_lower, const double* row_upper, const HighsInt* start, const HighsInt* index,
                       const double* value, const HighsInt* integrality) = nullptr;
  HighsInt (*run)(void*) = nullptr;
  HighsInt (*model_status)(const void*) = nullptr;
  HighsInt (*solution)(const void*, double*, double*, double*, double*) = nullptr;
  HighsInt (*double_info)(const void*, const char*, double*) = nullptr;
  HighsInt (*int_info)(const void*, const char*, HighsInt*) = nullptr;
};

struct HighsLibrary {
  HighsFunctions call;
  std::string name;
};

constexpr const char* kHighsHint = "scripts/setup --highs fetches it; or unset the variable: the search needs it not";

std::optional<HighsLibrary> open_highs() {
  const std::optional<std::string> wanted = env("TRIREME_HIGHS_LIBRARY");
  const std::vector<std::string> files =
      wanted ? std::vector{*wanted}
             : std::vector<std::string>{"libhighs.so.1", (cache_folder() / "highs-1.15.1" / "libhighs.so.1").string()};
  void* handle = nullptr;
  HighsLibrary library;
  for (const std::string& file : files) {
    handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    library.name = file;
    if (handle != nullptr) break;
  }
  if (handle == nullptr) {
    if (wanted)
      throw ConfigError(fmt::format("TRIREME_HIGHS_LIBRARY = {} does not load: {}", *wanted, dlerror()), kHighsHint);
    return std::nullopt;
  }
  const auto find = [&](auto& function, const char* name) {
    void* address = dlsym(handle, name);
    if (address == nullptr) throw ConfigError(fmt::format("{} has no function {}", library.name, name), kHighsHint);
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(address);
  };
  HighsFunctions& call = library.call;
  find(call.create, "Highs_create");
  find(call.destroy, "Highs_destroy");
  find(call.version, "Highs_version");
  find(call.set_bool, "Highs_setBoolOptionValue");
  find(call.set_int, "Highs_setIntOptionValue");
  find(call.set_double, "Highs_setDoubleOptionValue");
  find(call.pass_mip, "Highs_passMip");
  find(call.run, "Highs_run");
  find(call.model_status, "Highs_getModelStatus");
  find(call.solution, "Highs_getSolution");
  find(call.double_info, "Highs_getDoubleInfoValue");
  find(call.int_info, "Highs_getIntInfoValue");
  library.name += fmt::format(", HiGHS {}", call.version());
  return library;
}

const std::optional<HighsLibrary>& highs() {
  static const std::optional<HighsLibrary> library = open_highs();
  return library;
}

/// Rows of "lower <= sum of entries <= upper".
struct IntegerProgram {
  std::vector<double> cost, row_lower, row_upper, value;
  std::vector<HighsInt> integrality, start, index;

  HighsInt add_column(double of_cost, bool is_integer) {
    cost.push_back(of_cost);
    integrality.push_back(is_integer ? kInteger : kContinuous);
    return static_cast<HighsInt>(cost.size()) - 1;
  }
  void begin_row(double lower, double upper) {
    start.push_back(static_cast<HighsInt>(index.size()));
    row_lower.push_back(lower);
    row_upper.push_back(upper);
  }
  void add_entry(HighsInt column, double of_value) {
    index.push_back(column);
    value.push_back(of_value);
  }
};

/// Tolerances of 1e-6 are then a billionth of the memory.
constexpr double kLimitBecomes = 1e3;

IntegerProgram program_of(const SearchProblem& problem, double memory_bytes, double scale) {
  IntegerProgram program;
  std::vector<HighsInt> first;  // [node] its first choice's column
  for (const auto& costs : problem.cost) {
    first.push_back(static_cast<HighsInt>(program.cost.size()));
    for (const double cost : costs) program.add_column(cost * scale, true);
    program.begin_row(1, 1);
    for (std::size_t c = 0; c < costs.size(); ++c) program.add_entry(first.back() + static_cast<HighsInt>(c), 1);
  }
  for (const PairCost& pair : problem.pairs) {
    const auto a = static_cast<std::size_t>(pair.a), b = static_cast<std::size_t>(pair.b);
    const std::size_t rows = problem.cost[a].size(), columns = problem.cost[b].size();
    const auto begin = static_cast<HighsInt>(program.cost.size());
    for (const double cost : pair.cost) program.add_column(cost * scale, false);
    const auto at = [&](std::size_t i, std::size_t j) { return begin + static_cast<HighsInt>(i * columns + j); };
    for (std::size_t i = 0; i < rows; ++i) {
      program.begin_row(0, 0);
      for (std::size_t j = 0; j < columns; ++j) program.add_entry(at(i, j), 1);
      program.add_entry(first[a] + static_cast<HighsInt>(i), -1);
    }
    for (std::size_t j = 0; j < columns; ++j) {
      program.begin_row(0, 0);
      for (std::size_t i = 0; i < rows; ++i) program.add_entry(at(i, j), 1);
      program.add_entry(first[b] + static_cast<HighsInt>(j), -1);
    }
  }
  const auto add_memory = [&](const MemoryRow& row) {
    if (row.empty()) return;
    program.begin_row(-std::numeric_limits<double>::infinity(), kLimitBecomes);
    for (std::size_t node = 0; node < row.size(); ++node) {
      for (std::size_t c = 0; c < row[node].size(); ++c) {
        if (row[node][c] != 0)
          program.add_entry(first[node] + static_cast<HighsInt>(c), kLimitBecomes * row[node][c] / memory_bytes);
      }
    }
  };
  add_memory(problem.memory);
  for (const MemoryRow& row : problem.rows) add_memory(row);
  return program;
}

/// What a row holds at the least, every node by itself.
double least_of(const MemoryRow& row) {
  double least = 0;
  for (const auto& node : row) least += node.empty() ? 0 : *std::ranges::min_element(node);
  return least;
}

}  // namespace

std::optional<std::string> highs_library() { return highs() ? std::optional(highs()->name) : std::nullopt; }

std::optional<Limited> solve_by_highs(const SearchProblem& problem, const LimitedOptions& options) {
  if (!highs()) return std::nullopt;
  const HighsFunctions& call = highs()->call;
  const auto cannot_fit = [&](const MemoryRow& row) { return least_of(row) > options.memory_bytes; };
  if (cannot_fit(problem.memory) || std::ranges::any_of(problem.rows, cannot_fit))
    return Limited{.assignment = std::nullopt, .proven = true};
  const Elimination free = eliminate(problem);  // without a limit
  Limited result{.assignment = std::nullopt, .cost = 0, .bound = free.cost, .subproblems = 1};
  const auto take = [&](Assignment assignment) {
    const double cost = cost_of(problem, assignment);
    if (memory_of(problem, assignment) > options.memory_bytes || (result.assignment && cost >= result.cost)) return;
    result.assignment = std::move(assignment);
    result.cost = cost;
  };
  take(free.assignment);
  if (result.assignment) {
    result.proven = true;
    return result;
  }
  constexpr double kOptimumBecomes = 1e3;
  const double scale = free.cost > 0 ? kOptimumBecomes / free.cost : 1;
  const IntegerProgram program = program_of(problem, options.memory_bytes, scale);
  const std::size_t columns = program.cost.size();
  const std::vector<double> zeros(columns, 0), ones(columns, 1);
  void* model = call.create();
  call.set_bool(model, "output_flag", 0);
  call.set_int(model, "threads", 1);
  call.set_double(model, "time_limit", options.seconds);
  call.set_double(model, "mip_rel_gap", options.gap);
  call.set_double(model, "mip_abs_gap", options.gap * kOptimumBecomes);
  const HighsInt passed =
      call.pass_mip(model, static_cast<HighsInt>(columns), static_cast<HighsInt>(program.start.size()),
                    static_cast<HighsInt>(program.index.size()), kRowWise, kMinimize, 0, program.cost.data(),
                    zeros.data(), ones.data(), program.row_lower.data(), program.row_upper.data(), program.start.data(),
                    program.index.data(), program.value.data(), program.integrality.data());
  const bool ran = passed != kStatusError && call.run(model) != kStatusError;
  const HighsInt status = ran ? call.model_status(model) : 0;
  double bound = 0;
  if (ran && call.double_info(model, "mip_dual_bound", &bound) != kStatusError && std::isfinite(bound))
    result.bound = std::max(result.bound, bound / scale);
  HighsInt feasible = 0;
  constexpr HighsInt kFeasiblePoint = 2;
  std::vector<double> values(columns, 0), duals(columns, 0), rows(program.start.size(), 0), row_duals = rows;
  if (ran && call.int_info(model, "primal_solution_status", &feasible) != kStatusError && feasible == kFeasiblePoint &&
      call.solution(model, values.data(), duals.data(), rows.data(), row_duals.data()) != kStatusError) {
    Assignment assignment;
    std::size_t column = 0;
    for (const auto& costs : problem.cost) {
      const auto begin = values.begin() + static_cast<std::ptrdiff_t>(column);
      assignment.push_back(
          static_cast<int>(std::max_element(begin, begin + static_cast<std::ptrdiff_t>(costs.size())) - begin));
      column += costs.size();
    }
    take(std::move(assignment));
  }
  call.destroy(model);
  if (!ran) throw InternalError("HiGHS refused the integer program of a search");
  result.proven = status == kInfeasible || (status == kOptimal && result.assignment.has_value());
  if (status == kOptimal && result.assignment) result.bound = std::min(result.bound, result.cost);
  return result;
}

}  // namespace trireme::plan::graph
