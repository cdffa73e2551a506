#define TRIREME_ROTARY_TABLE kRotaryV4
#include "trireme/kernels/cpu/rotary_body.h"
