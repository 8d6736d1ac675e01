// One name, two versions.
int which_old(void) { return 1; }
int which_new(void) { return 2; }
__asm__(".symver which_old,which@FIRST");
__asm__(".symver which_new,which@@SECOND");
