#define TRIREME_ACTIVATION_TABLE kActivationV4
#include "trireme/kernels/cpu/activation_body.h"
