#define TRIREME_EMBEDDING_TABLE kEmbeddingPlain
#include "trireme/kernels/cpu/embedding_body.h"
