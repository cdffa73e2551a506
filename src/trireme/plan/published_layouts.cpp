#include "trireme/plan/published_layouts.h"

#include <algorithm>

namespace trireme::plan {
namespace {

/// Sources that chose their layouts freely.
bool chose_its_layout(const std::string& source) {
  return source == "megatron-sc21" || source == "llama3" || source == "mtnlg";
}

/// Comparisons of layouts that were given, not chosen, say nothing: ZeRO-3 as the other side of a table.
bool is_best_of_its_source(const PublishedRun& run) { return counts(run) && run.zero.value_or(0) < 3; }

Estimate fastest(const cost::Hardware& hardware, const PublishedRun& run, const Choices& given) {
  const SearchResult found = search(hardware, job_of(run), run.gpus, {.given = given, .top = 5});
  return found.best.empty() ? *found.smallest : found.best.front();
}

}  // namespace

std::vector<LayoutComparison> compare_layouts(const std::vector<PublishedSource>& sources) {
  std::vector<LayoutComparison> out;
  for (const PublishedSource& source : sources) {
    if (!chose_its_layout(source.name)) continue;
    for (const PublishedRun& run : source.file.runs) {
      if (!is_best_of_its_source(run)) continue;
      const cost::Hardware hardware = cost::load_hardware(run.cluster);
      LayoutComparison row{.id = run.id};
      Choices given = choices_of(run);
      given.cp = run.cp.value_or(1);
      row.published = fastest(hardware, run, given);
      given.micro_batch_size.reset();
      given.virtual_stages.reset();
      row.micros = fastest(hardware, run, given);
      given.pp.reset();
      given.dp.reset();
      row.stages = fastest(hardware, run, given);
      given.tp.reset();
      row.best = fastest(hardware, run, given);
      // A search that is less bound finds nothing slower but for the few that are replayed.
      for (const Estimate* tighter : {&row.stages, &row.micros, &row.published}) {
        if (tighter->memory.fits && tighter->step_seconds() < row.best.step_seconds()) row.best = *tighter;
      }
      out.push_back(std::move(row));
    }
  }
  return out;
}

}  // namespace trireme::plan
