#include "reduce.inl"

template int rowwise::launch_reduce<rowwise::i32>(const rw_reduce_params&, void*, bool);
