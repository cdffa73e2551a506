// Precompiled for the tests of the rooms with tensors: all of ATen, once.
#pragma once
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "rooms.h"
