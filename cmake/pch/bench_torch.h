// Precompiled for the benchmarks of the rooms with tensors.
#pragma once
#include <nlohmann/json.hpp>

#include "rooms_torch.h"
