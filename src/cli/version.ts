/** The version of the command: that of the server it was built with. The build inserts it. */
declare const __LOAM_VERSION__: string;
export const VERSION: string = typeof __LOAM_VERSION__ === 'string' ? __LOAM_VERSION__ : 'source';
