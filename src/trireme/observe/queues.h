// observe/queues.h -- the queues of a run by Little's law, and which of them bounds it.
//
// Depends on: base (queue_meter), step_record.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "trireme/observe/step_record.h"

namespace trireme::observe {

/// Every queue over all of these steps, in the order in which they first appear.
std::vector<NamedQueue> queues_of(std::span<const StepRecord> steps);

/// The queue at which training stood still longest; none where all of them together took less than 1 % of the time.
/// Receives between stages are works too: where they are most of what is waited for there, they are the queue.
std::optional<NamedQueue> bounding_queue(std::span<const NamedQueue> queues);

/// "prefetch: L 3.90, lambda 2.10 /s, W 1.86 s, blocked 0.3 % of the time".
std::string to_text(const NamedQueue& queue);

}  // namespace trireme::observe
