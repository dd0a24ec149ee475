#include "reduce.inl"

template int rowwise::launch_reduce<float>(const rw_reduce_params&, void*, bool);
