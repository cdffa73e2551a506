// Precompiled for the benchmarks of the rooms with tensors.
#pragma once
#include <nlohmann/json.hpp>

#include "../cmake/pch_torch.h"
